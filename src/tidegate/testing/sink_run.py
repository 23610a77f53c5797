"""Drive a sink as the engine does: rounds, attempts, checkpoints, crashes, restores, rescales; without Spark."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import cloudpickle

from tidegate.base import faults
from tidegate.base.errors import FencedError
from tidegate.base.pickling import find_other
from tidegate.operators.contracts.sink import Committer, CommitterContext, Prepared, Sink, WriterContext, committer_of

START_MS = 1_700_000_000_000


class Crash(faults.Killed):
    """Stand for the death of the process at this point: nothing may catch it."""


def crash_at(number: int, prefix: str = "") -> Callable[[], bool]:
    """Install a hook that crashes at the n-th fault point (from 0) whose name starts with ``prefix``. The returned
    function tells whether it crashed."""
    passed = -1

    def hook(name: str, where: dict[str, Any]) -> None:
        nonlocal passed
        if name.startswith(prefix):
            passed += 1
            if passed == number:
                raise Crash(f"{name} {where}")

    faults.install(hook)
    return lambda: passed >= number


@dataclass
class Checkpoint:
    """Hold the sink's part of the last completed checkpoint, and how many values it covers."""

    position: int = 0
    states: list[list[Any]] = field(default_factory=list)
    committables: list[Any] = field(default_factory=list)


class _NoCommitter(Committer):
    def commit(self, committables: list[Any]) -> None:
        assert not committables, "a sink without a committer has nothing to commit"


class SinkRun:
    """Run a job that writes a numbered stream of values into one sink. ``value(n)`` is the n-th value; a restore feeds
    the values again from the checkpoint on. Writers run on a pickled copy of the sink, as in another process."""

    def __init__(self, sink: Sink, staging: str, value: Callable[[int], Any], parallelism: int = 2) -> None:
        self._sink, self._staging, self._value = sink, staging, value
        self._copy: Sink = cloudpickle.loads(cloudpickle.dumps(sink))
        self.parallelism, self.now_ms = parallelism, START_MS
        self.position, self.round, self._attempts, self._checkpoints = 0, 0, 0, 0
        self.states: list[list[Any]] = [[] for _ in range(parallelism)]
        self.pending: list[Any] = []
        self.checkpoint = Checkpoint(states=self.states)
        self.committer = self.new_committer()

    def new_committer(self) -> Committer:
        """Return the sink's committer; for a sink that needs none, a committer that does nothing."""
        return committer_of(self._sink, CommitterContext("job", "sink", self._staging)) or _NoCommitter()

    def fenced_committer(self) -> Committer:
        """Return the committer of an attempt that has lost its lease, and does not know it yet."""

        def lost() -> None:
            raise FencedError("An attempt that lost its lease must not publish, commit or delete anything.")

        context = CommitterContext("job", "sink", self._staging, lost)
        return committer_of(self._sink, context) or _NoCommitter()

    def writer_context(self, subtask: int, checkpoint_id: int | None) -> WriterContext:
        self._attempts += 1
        attempt = f"a{self._attempts}"
        return WriterContext(
            job_id="job",
            sink_id="sink",
            subtask=subtask,
            parallelism=self.parallelism,
            round=self.round,
            checkpoint_id=checkpoint_id,
            attempt=attempt,
            now_ms=self.now_ms,
            staging=self._staging,
            round_ms=self.now_ms,
        )

    def attempt(self, count: int, *, checkpoint: bool = False, end: bool = False) -> list[Prepared]:
        """Run one attempt of a round over the next ``count`` values, spread over the subtasks. Nothing is accepted
        yet."""
        results = []
        for subtask in range(self.parallelism):
            numbers = [n for n in range(self.position, self.position + count) if n % self.parallelism == subtask]
            context = self.writer_context(subtask, self._checkpoints + 1 if checkpoint else None)
            writer = self._copy.create_writer(context, self.states[subtask])
            for start in range(0, len(numbers), 3):
                writer.write_batch([self._value(n) for n in numbers[start : start + 3]], None)
            prepared = writer.prepare_commit(end)
            writer.close()
            other = find_other([prepared.committables, prepared.state], allow_bytes=True)
            assert other is None, f"committables and states are plain data, found {type(other).__name__}: {other!r}"
            results.append(prepared)
        return results

    def failed_attempt(self, count: int) -> None:
        """Run an attempt that fails in the middle and cleans up after itself."""
        for subtask in range(self.parallelism):
            writer = self._copy.create_writer(self.writer_context(subtask, None), self.states[subtask])
            writer.write_batch([self._value(self.position + n) for n in range(count)], None)
            writer.abort()
            writer.close()

    def accept(self, prepared: list[Prepared], count: int) -> None:
        self.states = [p.state for p in prepared]
        self.pending += [committable for p in prepared for committable in p.committables]
        self.position += count
        self.round += 1
        self.now_ms += 1000

    def discard(self, prepared: list[Prepared]) -> None:
        """Discard the round while the job continues."""
        self.committer.abort([committable for p in prepared for committable in p.committables])

    def step(self, count: int, *, checkpoint: bool = False, end: bool = False) -> None:
        """Run an accepted round; with ``checkpoint``, also complete and commit the checkpoint."""
        self.accept(self.attempt(count, checkpoint=checkpoint, end=end), count)
        if checkpoint:
            self.complete()
            self.commit()

    def complete(self) -> None:
        """Step 7: complete the checkpoint. From here on a crash restores it."""
        self._checkpoints += 1
        self.checkpoint = Checkpoint(self.position, self.states, list(self.pending))

    def commit(self) -> None:
        """Step 8: commit the checkpoint."""
        self.committer.commit(list(self.pending))
        self.pending = []

    def restore(self, parallelism: int | None = None) -> None:
        """Start a new process: everything since the checkpoint is forgotten, and the checkpoint is committed again."""
        self.parallelism = parallelism or self.parallelism
        entries = [entry for state in self.checkpoint.states for entry in state]
        self.states = [entries[subtask :: self.parallelism] for subtask in range(self.parallelism)]
        self.position, self.pending = self.checkpoint.position, []
        self.round += 1
        self.committer = self.new_committer()
        self.committer.recover(list(self.checkpoint.committables))
        self.committer.abort_lingering(list(self.checkpoint.committables), entries)
        self.checkpoint = Checkpoint(self.position, self.states, self.checkpoint.committables)

    def finish(self) -> None:
        """Run the end of input, the final checkpoint, and the sweep of what discarded attempts have left."""
        self.step(0, checkpoint=True, end=True)
        self.committer.abort_lingering([], [])
        self.committer.close()

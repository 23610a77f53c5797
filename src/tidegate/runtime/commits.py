"""Step 8: call the committers of all sinks in order, retry with backoff, fenced by the lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tidegate.base import faults
from tidegate.base.clock import Clock
from tidegate.base.errors import CommitError, RetryableCommitError
from tidegate.base.plain_text import count
from tidegate.operators.contracts.sink import Committer, CommitterContext, Publication, committer_of
from tidegate.operators.contracts.specs import SinkNode

log = logging.getLogger(__name__)

_NEVER = threading.Event()


@dataclass(frozen=True)
class CommitRetry:
    """A commit that failed and is retried. ``attempt`` of at most ``of`` failed last, with ``error``. ``since_ms``: the first."""

    operator: int
    label: str
    attempt: int
    of: int
    since_ms: int
    error: str


OnRetry = Callable[[CommitRetry | None], None]
"""Called by the checkpoint lane after each failure, and with None when the commit has succeeded or was given up."""


def _ignored(retry: CommitRetry | None) -> None:
    """Do nothing: nobody shows retries."""


class SinkCommitters:
    """The committers of a job. ``check_lease``: an attempt that lost its lease must not commit or abort.

    They belong to the checkpoint lane while rounds run, so a committer is called by one thread at a time, and its calls keep
    their order.
    """

    def __init__(
        self,
        sinks: list[SinkNode],
        job_id: str,
        root: str,
        *,
        check_lease: Callable[[], None],
        clock: Clock,
        attempts: int,
        backoff_ms: int,
        lease: int = 0,
        at_once: bool = False,
        on_retry: OnRetry = _ignored,
    ) -> None:
        """``at_once``: at-least-once mode, no sink waits for a checkpoint. ``on_retry``: see ``OnRetry``."""
        self._on_retry = on_retry
        self._names = {operator.id: operator.name for operator in sinks}
        self._labels = {operator.id: operator.label for operator in sinks}
        self._sinks = {node.id: node.spec.sink for node in sinks}
        self._committers: dict[int, Committer] = {}
        for operator in sinks:
            staging = f"{root}/taskowned/{operator.uid_hash}"
            context = CommitterContext(job_id, operator.uid_hash, staging, check_lease, root, lease, at_once)
            committer = committer_of(self._sinks[operator.id], context)
            if committer is not None:
                self._committers[operator.id] = committer
        self._check_lease, self._clock, self.at_once = check_lease, clock, at_once
        self._attempts, self._backoff_ms = attempts, backoff_ms
        self.owes = False
        """Whether a commit has begun and has not finished."""

    def waits_for_checkpoint(self, operator_id: int, checkpointing: bool) -> bool:
        """Whether committables of this sink wait until a checkpoint is complete (or, without checkpoints, for the job's end)."""
        if self.at_once:
            return False
        publication = self._sinks[operator_id].publication
        return publication is Publication.CHECKPOINT or (
            publication is Publication.CHECKPOINT_OR_ROUND and checkpointing
        )

    @property
    def all_wait(self) -> bool:
        """Whether no output of the job is visible before a checkpoint."""
        return bool(self._sinks) and all(
            o in self._committers and self.waits_for_checkpoint(o, True) for o in self._sinks
        )

    def commit(self, committables: Mapping[int, Sequence[object]], *, recovering: bool = False) -> None:
        """Commit per sink, in the order of rounds. Returns when every one is confirmed; raises CommitError otherwise."""
        for _ in self.commit_by_sink(committables, recovering=recovering):
            pass

    def commit_by_sink(
        self, committables: Mapping[int, Sequence[object]], *, recovering: bool = False, checked: bool = False
    ) -> Iterator[None]:
        """Do as ``commit``, sink by sink. ``checked``: step 7 has just checked the lease, and any attempt may commit a stored
        checkpoint (``checkpoint/lease.py``)."""
        waiting = {o: list(items) for o, items in committables.items() if items and o in self._committers}
        if not waiting:
            return
        self.owes = True
        if not checked:
            self._check_lease()
        for done, (operator_id, items) in enumerate(waiting.items()):
            committer = self._committers[operator_id]
            faults.point("C6.before-commit", sink=self._names[operator_id], done=done)
            self._retry(operator_id, committer.recover if recovering else committer.commit, items)
            faults.point("C6.sink-committed", sink=self._names[operator_id], done=done)
            self.owes = done + 1 < len(waiting)
            yield

    def _retry(self, operator_id: int, commit: Callable[[list[object]], None], items: list[object]) -> None:
        delay, began_ms = self._backoff_ms, self._clock.now_ms()
        try:
            for attempt in range(1, self._attempts + 1):
                try:
                    return commit(items)
                except RetryableCommitError as error:
                    label = self._labels[operator_id]
                    log.warning("step 8: sink %s, attempt %d: %s", label, attempt, error)
                    self._on_retry(CommitRetry(operator_id, label, attempt, self._attempts, began_ms, str(error)))
                    last = error
                if attempt < self._attempts:
                    self._clock.wait(_NEVER, delay / 1000)  # a cancellation waits: step 7 has promised this output
                    delay = min(delay * 2, 30_000)
        finally:
            self._on_retry(None)
        raise CommitError(
            "A sink could not commit the output of a completed checkpoint",
            where=f"sink {self._labels[operator_id]}",
            found=f"{count(self._attempts, 'attempt')}, the last: {last}",
            cure="bring the external system back; the restarted job retries the commit",
        )

    def abort(self, prepared: Mapping[int, Sequence[object]]) -> None:
        """Abort the output of a discarded round. Nobody will ever commit this output: it is in no checkpoint."""
        waiting = {o: list(items) for o, items in prepared.items() if items and o in self._committers}
        if waiting:
            self._check_lease()
        for operator_id, items in waiting.items():
            self._committers[operator_id].abort(items)

    def abort_lingering(self, committables: Mapping[int, Sequence[object]], states: Mapping[int, list[object]]) -> None:
        """Abort prepared output that is in neither argument. Call it after a restore, after a declined round, after a round with
        retried tasks, and at the end of the job. A call after every checkpoint would cost a listing of the sink each time, and
        only a failed task leaves such output."""
        for operator_id, committer in self._committers.items():
            self._check_lease()
            committer.abort_lingering(list(committables.get(operator_id, ())), states.get(operator_id, []))

    def close(self) -> None:
        for committer in self._committers.values():
            committer.close()

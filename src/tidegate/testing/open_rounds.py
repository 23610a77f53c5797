"""Rounds that stay open: a test feeds the subtasks of a small job by hand, and looks at them between two records.

The subtasks, their generated loops, operators, state backends, snapshots and sinks are those of any job. Records travel from
subtask to subtask as packed chunks. The differences: a round begins and ends when the test says so, and every record travels at
once, so no channel waits for another.
"""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from tidegate.base.clock import MAX_WATERMARK, MIN_WATERMARK, ManualClock
from tidegate.base.errors import SnapshotError, UserCodeError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.checkpoint.metadata import OperatorState
from tidegate.checkpoint.owner import is_alive
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, StreamOperator
from tidegate.operators.contracts.specs import sinks_of, sources_of
from tidegate.operators.contracts.watermarks import ChannelWatermarks
from tidegate.operators.flow.heavy_keys import Heavy
from tidegate.operators.flow.level import job_spec
from tidegate.operators.flow.round import SubtaskRound
from tidegate.operators.flow.rows import RoundContext, Row, Status, TaskPlan
from tidegate.operators.flow.subtask import Subtask
from tidegate.operators.kinds.async_io import AsyncOperator
from tidegate.operators.kinds.source import SourceOperator
from tidegate.runtime.commits import SinkCommitters
from tidegate.runtime.progress import Progress
from tidegate.runtime.restoring import Submission
from tidegate.runtime.settings import JobSettings
from tidegate.state.in_flight import InFlightPart
from tidegate.state.local_dir import SHARED_MEMORY
from tidegate.state.snapshot import EMPTY

_SPLIT = "0"
"""The only split of an input."""


class HandFeed:
    """The input of a subtask: rows that the test sends. See ``feeds.py`` for the protocol."""

    read_seconds, bytes_in = 0.0, 0
    """A harness shows no figures."""

    def heavy_keys(self) -> Heavy | None:
        """Return None: a harness shows no figures."""
        return None

    def __init__(self, subtask: Subtask, round: OperatorRound) -> None:
        self._subtask, self._round = subtask, round
        self.ended = False
        snapshot, head = round.plan.snapshots.get(subtask.head.id, EMPTY), subtask.head
        before = round.context.statuses
        starts = {
            (edge.id, sender): Status(before[edge.source][sender].watermark) if edge.source in before else Status()
            for edge, sender in subtask.side.channels
        }
        reached = snapshot.watermark if head.follows_input else MIN_WATERMARK
        self._marks = ChannelWatermarks(starts, reached)
        if starts:
            head.input_time.watermark, head.input_time.idle = self._marks.current(), False

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        """Return no steps: the test takes the steps."""
        return iter(())

    def take(self, row: Row) -> None:
        """Process a chunk, and reach the watermark after it."""
        _, _, _, edge, sender, _, watermark, payload = row
        subtask, side, now = self._subtask, self._subtask.side, self._round.now_ms()
        self._marks.update(edge, sender, watermark, False)
        if payload is not None:
            subtask.process(side.inputs[edge], side.packers[edge].unpack(payload), now)
        head = subtask.head
        head.input_time.watermark = max(head.input_time.watermark, self._marks.current())
        subtask.advance(now)

    def end(self) -> EndOfInput:
        """Return whether the input ends, and move to the end of event time if it does."""
        if not self.ended:
            return EndOfInput.AHEAD
        self._subtask.head.input_time.watermark = MAX_WATERMARK
        return EndOfInput.PAST if self._round.end_of_input is EndOfInput.PAST else EndOfInput.NOW

    def in_flight(self, path: str) -> InFlightPart | None:
        """Return None: the feed holds no records between two calls."""
        return None


class OpenRound(SubtaskRound):
    """The round of one subtask. It takes rows until the test ends it. Errors are raised, and not put into an ack."""

    def _make_feed(self) -> HandFeed:
        self.feed = HandFeed(self._subtask, self._round)
        return self.feed

    @property
    def subtask(self) -> Subtask:
        """The subtask that runs the round."""
        return self._subtask

    def open(self) -> None:
        """Begin the round: functions open. Called once, before anything else."""
        self._subtask.begin()
        self._prepare()
        source = self._subtask.head
        if isinstance(source, SourceOperator):
            source.begin_split(_SPLIT)

    def emit(self, batch: Batch) -> None:
        """Let the source at the head emit a batch."""
        source = self._subtask.head
        assert isinstance(source, SourceOperator)
        self._subtask.begin_batch(self._round.now_ms())
        source.emit(_SPLIT, batch)
        self._subtask.advance(self._round.now_ms())

    def reach(self, watermark: int) -> None:
        """Let the source at the head reach a watermark."""
        time = self._subtask.head.output_time
        time.watermark = max(time.watermark, watermark)
        self._subtask.advance(self._round.now_ms())

    def on_clock(self) -> None:
        """Handle the time that has passed."""
        for operator in self._subtask.operators.values():
            operator.on_processing_time(self._round.now_ms())

    def drain(self) -> None:
        """Wait for asynchronous calls."""
        for operator in self._subtask.operators.values():
            if isinstance(operator, AsyncOperator):
                operator.end_round(self._round.now_ms())

    def rows(self) -> list[Row]:
        """Return everything that the subtask has sent since the last call, and its watermark."""
        subtask = self._subtask
        for output in subtask.outputs.values():
            output.flush(subtask.operators[output.edge.source].output_time.watermark, everything=True)
            output.announce(subtask.operators[output.edge.source].output_time.watermark)
        return list(subtask.take_rows())

    def finish(self) -> list[Row]:
        """Step 4: end the round. Return what it still sends."""
        self._end_of_round()
        return self.rows()

    def acknowledge(self) -> None:
        """Steps 5 and 6: take the snapshots, which are then in ``ack``."""
        self._take_snapshots()
        for operator in self._subtask.operators.values():
            operator.end(abort=self.ack.declined is not None)


@dataclass(frozen=True)
class HarnessSnapshot:
    """What a harness has stored: a savepoint in memory. Restore it in another harness, at any parallelism."""

    checkpoint_id: int
    states: dict[str, OperatorState] = field(repr=False)
    files: dict[str, bytes] = field(repr=False)
    processing_time: int


class OpenJob:
    """The subtasks of a small program, each with an open round. ``clock``: processing time."""

    def __init__(
        self, program: Program, clock: ManualClock, taken: Iterable[int], restored: HarnessSnapshot | None
    ) -> None:
        """``taken``: operators whose records to side outputs stay records of their output: the caller divides them."""
        memory = SHARED_MEMORY if os.path.isdir(SHARED_MEMORY) else None
        self._directory = tempfile.mkdtemp(prefix="tidegate-harness-", dir=memory)
        self.clock, self._program = clock, program
        self._rounds: list[list[OpenRound]] = []
        """By chain, in the order of levels."""
        try:
            self._start(program, frozenset(taken), restored)
        except BaseException:
            shutil.rmtree(self._directory, ignore_errors=True)
            raise

    def _start(self, program: Program, taken: frozenset[int], restored: HarnessSnapshot | None) -> None:
        own = JobSettings.of(program.configuration)
        root, local = f"{self._directory}/job", f"{self._directory}/local"
        self._files = Files(root)
        job = Submission(program, own, "harness", "harness", self._files, local, self.clock, is_alive)
        states = {} if restored is None else restored.states
        self.graph = job.graph({uid: state.max_parallelism for uid, state in states.items()})
        for path, content in ({} if restored is None else restored.files).items():
            self._files.write(path, content)
        # The harness itself decides when input ends, in batch mode too.
        settings = replace(own.of_tasks("harness", root, local), batch_mode=False, now_ms=self.clock.now_ms)
        spec = job_spec(self.graph, "harness", settings)
        self._committers = SinkCommitters(
            sinks_of(self.graph), "harness", root, check_lease=lambda: None, clock=self.clock, attempts=1, backoff_ms=1
        )
        self.progress = Progress.restored(self.graph, states)
        self._number, self.ended = 0, False
        self._subtasks = []
        for chain in self.graph.chains:
            mine = []
            for index in range(chain.parallelism):
                shipped = pickle.loads(spec.chains[chain.id])
                mine.append(
                    Subtask(
                        shipped.chain,
                        index,
                        settings,
                        spec.senders,
                        spec.targets,
                        shipped.rewrites,
                        shipped.tagging - taken,
                    )
                )
            self._subtasks.append(mine)
        self._places = spec.partitions
        if restored is not None:
            self._committers.commit(self.progress.committables, recovering=True)
            self._committers.abort_lingering(self.progress.committables, self.progress.writer_states())
            self.progress = self.progress.without_pending(self.progress.committables)
        self.begin()

    # -- rounds --------------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Begin a round on all subtasks. It is the round of a checkpoint, if the test takes one."""
        self._number += 1
        context = RoundContext(
            self._number,
            f"{self._number}-{new_token()}",
            self._number,
            self.clock.now_ms(),
            statuses=self.progress.statuses(),
        )
        plan = self.progress.plan(context, {})
        self._rounds = []
        for chain, subtasks in zip(self.graph.chains, self._subtasks, strict=True):
            tasks = plan.tasks[chain.level][chain.offset : chain.offset + chain.parallelism]
            self._rounds.append([self._opened(*pair, context) for pair in zip(subtasks, tasks, strict=True)])
        self._settle()

    def _opened(self, subtask: Subtask, task: TaskPlan, context: RoundContext) -> OpenRound:
        made = OpenRound(subtask, context, task)
        made.open()
        return made

    def finish_round(self) -> None:
        """End the round and accept it."""
        for rounds in self._rounds:
            for one in rounds:
                one.feed.ended = self.ended
        for chain, rounds in enumerate(self._rounds):
            for one in rounds:
                self._deliver(one.finish(), after=chain)
        acks = []
        for rounds in self._rounds:
            for one in rounds:
                one.acknowledge()
                acks.append(one.ack)
        declined = next((ack.declined for ack in acks if ack.declined is not None), None)
        if declined is not None:
            raise SnapshotError("A snapshot could not be taken", found=declined)
        accepted = self.progress.accept(acks)
        waiting = {o: i for o, i in accepted.prepared.items() if self._committers.waits_for_checkpoint(o, True)}
        at_once = {o: i for o, i in accepted.prepared.items() if o not in waiting}
        self._committers.commit(at_once)
        self.progress = accepted.progress.with_pending(waiting)

    def snapshot(self) -> HarnessSnapshot:
        """Take a snapshot, and continue."""
        checkpoint_id = self._number
        self.finish_round()
        states = {state.uid_hash: state for state in self.progress.operator_states({})}
        files = {path: self._files.read_bytes(path) for path in sorted(self.progress.paths())}
        self.begin()
        return HarnessSnapshot(checkpoint_id, states, files, self.clock.now_ms())

    def complete(self, checkpoint_id: int) -> None:
        """Step 8: commit the output that waits, and notify functions."""
        self._committers.commit(self.progress.committables)
        self.progress = self.progress.without_pending(self.progress.committables)
        for operator in self.operators():
            operator.notify((checkpoint_id,), ())

    def abort(self, checkpoint_id: int) -> None:
        """Notify functions of a checkpoint that was aborted."""
        for operator in self.operators():
            operator.notify((), (checkpoint_id,))

    def close(self) -> None:
        """Close the functions, and delete all files."""
        try:
            for rounds in self._rounds:
                for one in rounds:
                    for operator in one.subtask.operators.values():
                        operator.end(abort=True)
            for subtasks in self._subtasks:
                for subtask in subtasks:
                    subtask.close()
            self._committers.close()
        finally:
            self._rounds = []
            shutil.rmtree(self._directory, ignore_errors=True)

    # -- records -------------------------------------------------------------------------------------------------------

    def push(self, number: int, batch: Batch) -> None:
        """Let the n-th input emit a batch."""
        chain = self._input(number)
        self._rounds[chain][0].emit(batch)
        self._settle(chain)

    def reach(self, number: int, watermark: int) -> None:
        """Let the n-th input reach a watermark."""
        chain = self._input(number)
        self._rounds[chain][0].reach(watermark)
        self._settle(chain)

    def on_clock(self) -> None:
        """Handle the time that has passed."""
        for chain, rounds in enumerate(self._rounds):
            for one in rounds:
                one.on_clock()
                self._deliver(one.rows(), after=chain)

    def drain(self) -> None:
        """Wait for asynchronous calls."""
        for chain, rounds in enumerate(self._rounds):
            for one in rounds:
                one.drain()
                self._deliver(one.rows(), after=chain)

    def _input(self, number: int) -> int:
        return self.graph.chain_of[sources_of(self.graph)[number].id]

    def _settle(self, start: int = 0) -> None:
        for chain, rounds in enumerate(self._rounds[start:], start):
            for one in rounds:
                self._deliver(one.rows(), after=chain)

    def _deliver(self, rows: list[Row], *, after: int) -> None:
        """Hand rows to their receivers. The chains of a job are sorted: a receiver comes after its senders."""
        for row in rows:
            chain, index = self._places[row[0]][row[1]]
            assert chain > after
            receiver = self._rounds[chain][index]
            receiver.feed.take(row)

    # -- looking -------------------------------------------------------------------------------------------------------

    def operators(self, operator_id: int | None = None) -> list[StreamOperator]:
        """Return the operators of all subtasks, or the subtasks of one operator."""
        return [
            operator
            for subtasks in self._subtasks
            for subtask in subtasks
            for operator in subtask.operators.values()
            if operator_id in (None, operator.id)
        ]


def unwrapped(error: BaseException) -> BaseException:
    """Return the user's own exception, with the operator and the record as a note."""
    if not isinstance(error, UserCodeError) or error.__cause__ is None:
        return error
    cause = error.__cause__
    if not any(note == str(error) for note in getattr(cause, "__notes__", ())):
        cause.add_note(str(error))
    return cause

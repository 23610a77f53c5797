"""Run one round of one subtask: steps 4 to 6 of the protocol. The object lives for this round only."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from enum import Enum
from typing import NoReturn

from tidegate.base import faults
from tidegate.base.clock import Stopwatch
from tidegate.base.errors import TidegateError, UserCodeError
from tidegate.base.hashing import new_token
from tidegate.graph.transformation import Role
from tidegate.operators.contracts.operator import EndOfInput, OperatorRound, StreamOperator
from tidegate.operators.flow.feeds import ChannelFeed, Feed, KeyedBatchFeed, SenderFailed, SplitFeed
from tidegate.operators.flow.rows import ACK, MAX_WATERMARK, Ack, Barrier, RoundContext, Row, TaskPlan, Work
from tidegate.operators.flow.subtask import Subtask
from tidegate.operators.kinds.source import SourceOperator
from tidegate.operators.loop.blame import is_for_good, not_encodable, user_error
from tidegate.state.materialize import rebuilds
from tidegate.state.snapshot import EMPTY, IN_FLIGHT


class RoundOutcome(Enum):
    """Name the state of a subtask's round."""

    GOOD = "good"
    FAILED = "failed"
    """The ack has the error."""
    ABANDONED = "abandoned"
    """A sender has failed; its own ack has the error."""


class SubtaskRound:
    """Run one round of a subtask. A failure is reported in the ack, not by a dead worker."""

    def __init__(self, subtask: Subtask, context: RoundContext, plan: TaskPlan, tasks: Sequence[int] = ()) -> None:
        """``tasks``: by level how many tasks of the engine run it; empty: every subtask is a task of its own."""
        self._tasks = tasks
        self._started, self._rebuilds, self._process = Stopwatch.now(), rebuilds(), os.getpid()
        self._waited = 0.0
        """How long the subtask has waited for its input, and for who takes its output."""
        self._subtask = subtask
        self.ack = Ack(subtask.chain.id, subtask.index, new_token(), plan.run)
        over = plan.snapshots.get(subtask.head.id, EMPTY).watermark == MAX_WATERMARK
        end = EndOfInput.PAST if over else EndOfInput.AHEAD
        self._round = OperatorRound(context, plan, self.ack.token, subtask.settings.now_ms, end)
        self._outcome = RoundOutcome.GOOD
        self._where = {"chain": subtask.chain.name, "subtask": subtask.index, "round": context.round}
        self._feed = self._make_feed()

    def _make_feed(self) -> Feed:
        """Make the feed that gives the round its records."""
        subtask = self._subtask
        if isinstance(subtask.head, SourceOperator):
            return SplitFeed(subtask.head, subtask, subtask.files, self._round, self.ack)
        channels = subtask.side, subtask, subtask.files, self._round, self.ack
        if subtask.settings.batch_mode and subtask.head.key_context is not None:
            return KeyedBatchFeed(*channels, subtask.settings.local_root)
        return ChannelFeed(*channels)

    def run(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Yield chunks, then barriers and the ack. Always drain ``rows``."""
        subtask, rows = self._subtask, self._received(rows)
        subtask.begin()
        if self._round.context.rehearsal:
            yield from self._rehearse(rows)
            return
        try:
            self._guard(self._prepare)
            if self._outcome is RoundOutcome.GOOD:
                for step in self._feed.steps(rows):
                    self._guard(step)
                    if sent := subtask.take_rows():
                        yield from self._sent(sent)
                    if self._outcome is not RoundOutcome.GOOD:
                        break
            for _ in rows:  # an iterator that is not drained costs the worker
                pass
            self._guard(self._end_of_round)
            yield from self._sent(subtask.take_rows())
            worked = Stopwatch.now() - self._started - self._waited
            self._snapshot()
            self.ack.work, self.ack.heavy = self._work(worked), self._feed.heavy_keys()
            yield from self._barriers()
            faults.point("T2.before-ack", **self._where)
            self.ack.seconds = Stopwatch.now() - self._started
            self.ack.rebuilds = rebuilds() - self._rebuilds
            yield self._ack_row()
        except Exception:  # the input itself failed (lost shuffle files): the task is retried, as another attempt
            self._outcome = RoundOutcome.FAILED
            raise
        finally:
            abort = self._outcome is not RoundOutcome.GOOD or self.ack.declined is not None
            for operator in subtask.operators.values():
                operator.end(abort=abort)

    def _received(self, rows: Iterator[Row]) -> Iterator[Row]:
        while True:
            started = Stopwatch.now()
            row = next(rows, None)
            self._waited += Stopwatch.now() - started
            if row is None:
                return
            yield row

    def _sent(self, rows: list[Row]) -> Iterator[Row]:
        started = Stopwatch.now()
        yield from rows
        self._waited += Stopwatch.now() - started

    def _work(self, worked: float) -> Work:
        """Return the figures of the round. ``worked``: seconds of work before step 5."""
        feed, outputs = self._feed, self._subtask.outputs.values()
        pack = sum(output.pack_seconds for output in outputs)
        return Work(
            read=feed.read_seconds,
            user=max(0.0, worked - feed.read_seconds - pack),
            pack=pack,
            snapshot=max(0.0, Stopwatch.now() - self._started - self._waited - worked),
            bytes_in=feed.bytes_in,
            bytes_out=sum(output.bytes for output in outputs),
            acknowledged_ms=self._round.now_ms(),
        )

    def _ack_row(self) -> Row:
        return (-1, self._subtask.chain.offset + self._subtask.index, ACK, 0, 0, 0, 0, pickle.dumps(self.ack, 5))

    def _rehearse(self, rows: Iterator[Row]) -> Iterator[Row]:
        """Open functions to see whether their states fit. Only operators with stored state take part. Their functions
        stay open for the first round."""
        for _ in rows:
            pass
        snapshots = self._round.plan.snapshots
        concerned = [o for n, o in self._subtask.operators.items() if snapshots.get(n, EMPTY).declares_states]
        failed = None
        for operator in concerned:  # an operator that fails to open must not hide errors of the others
            self._outcome = RoundOutcome.GOOD
            self._guard(self._rehearse_one, operator)
            failed = self.ack.error = failed or self.ack.error
        for operator in concerned:
            operator.end(abort=True)
        yield self._ack_row()

    def _rehearse_one(self, operator: StreamOperator) -> None:
        found = operator.rehearse(self._round.plan.snapshots[operator.id], self._round)
        if found:
            self.ack.misfits[operator.id] = found

    # -- failures ----------------------------------------------------------------------------------------------------

    def _guard(self, step: Callable[..., None], *arguments: object) -> None:
        """Run a step unless an earlier step failed."""
        if self._outcome is not RoundOutcome.GOOD:
            return
        try:
            try:
                step(*arguments)
            finally:
                if os.getpid() != self._process:
                    _end_forked_child(f"chain '{self._subtask.chain.name}'", sys.exc_info()[1])
        except SenderFailed:
            self._outcome = RoundOutcome.ABANDONED
        except TidegateError as error:
            self._fail(error)
        except BaseException as error:
            self._fail(user_error(error, f"chain '{self._subtask.chain.name}'", None))

    def _fail(self, error: Exception) -> None:
        self._outcome, self.ack.error = RoundOutcome.FAILED, error
        if self._subtask.on_failure is not None:
            self._subtask.on_failure(self._subtask, error)
        self._subtask.begin()  # discard what is not sent yet

    # -- steps 4 to 6 ------------------------------------------------------------------------------------------------

    def _prepare(self) -> None:
        """Restore the operators, open functions (once), notify functions of checkpoints, and bring up the state."""
        round, operators = self._round, self._subtask.operators.values()
        for operator in operators:
            operator.restore(round.plan.snapshots.get(operator.id, EMPTY), round)
        self._subtask.open(round.end_of_input)
        if round.context.completed or round.context.aborted:
            for operator in operators:
                operator.notify(round.context.completed, round.context.aborted)
        faults.point("T1.before-state", **self._where)
        for operator in operators:
            operator.begin()
        now = round.now_ms()
        for operator in operators:
            operator.on_processing_time(now)

    def _end_of_round(self) -> None:
        """Step 4: all barriers have arrived. Fire the last timers, and end the input if this is its end."""
        round, operators = self._round, self._subtask.operators.values()
        round.end_of_input = self._feed.end()
        ended, now = round.end_of_input is not EndOfInput.AHEAD, round.now_ms()
        for operator in operators:
            (operator.end_input if ended else operator.end_round)(now)
        self._subtask.flush(everything=True)
        moments = [operator.wake_up_ms(now) for operator in operators]
        self.ack.wake_up_ms = min((moment for moment in moments if moment is not None), default=None)
        if ended:
            for operator in operators:
                operator.close_at_end(round.end_of_input)

    def _snapshot(self) -> None:
        """Step 5: make segments durable, prepare sinks. A failure declines the round; nothing of the attempt is visible
        to anybody."""
        try:
            if self._outcome is RoundOutcome.GOOD:
                self._take_snapshots()
        except Exception as error:
            if isinstance(error, UserCodeError) or is_for_good(error):
                return self._fail(error)
            place = f"'{self._subtask.chain.name}' ({self._subtask.index + 1}/{self._subtask.chain.parallelism})"
            if isinstance(error, UnicodeEncodeError):
                return self._fail(not_encodable(error, f"snapshot of {place}", ()))
            self.ack.declined = f"snapshot of {place}: {type(error).__name__}: {error}"

    def _take_snapshots(self) -> None:
        operators = self._subtask.operators.values()
        sinks = [operator for operator in operators if operator.operator.spec.role is Role.SINK]
        faults.point("T2.before-segment", **self._where)
        for operator in operators:
            if operator not in sinks:
                self._take_snapshot(operator)
        self._keep_in_flight()
        faults.point("T2.after-segment", **self._where)
        for sink in sinks:
            self._take_snapshot(sink)
        faults.point("K2.prepared", **self._where)
        measured = {operator.id: operator.metrics.changes() for operator in operators}
        self.ack.metrics = {operator_id: changes for operator_id, changes in measured.items() if changes}
        self.ack.declined = next((operator.declined for operator in operators if operator.declined), None)

    def _keep_in_flight(self) -> None:
        """Store what the subtask has received and not processed. These records are part of the round as state is:
        durable before the ack, and named in the ack whatever fails after this, so that a discarded round leaves no
        file."""
        head, index = self._subtask.head.operator, self._subtask.index
        name = f"{head.uid_hash[:12]}-{index}-{self._round.context.round}-{self.ack.token}"
        part = self._feed.in_flight(f"shared/{name}")
        if part is not None:
            self.ack.in_flight_records, self.ack.in_flight_bytes = part.records, part.bytes
            self.ack.snapshots[head.id] = self.ack.snapshots.get(head.id, EMPTY).with_parts({IN_FLIGHT: part})

    def _take_snapshot(self, operator: StreamOperator) -> None:
        started = Stopwatch.now()
        if operator.operator.spec.role is Role.SINK:
            self.ack.committables[operator.id] = operator.prepare_commit() or []
        waiting = self.ack.snapshots.get(operator.id, EMPTY).parts
        self.ack.snapshots[operator.id] = operator.snapshot().with_parts(waiting)
        self.ack.snapshot_seconds[operator.id] = Stopwatch.now() - started
        self.ack.shares |= operator.state_shares()

    def _barriers(self) -> Iterator[Row]:
        """Step 6 for the subtasks downstream: send one barrier to the task of each, after everything else."""
        ack, end = self.ack, self._round.end_of_input
        for output in self._subtask.outputs.values():
            status = self._subtask.operators[output.edge.source].status(end)
            ack.records_out += output.records
            barrier = Barrier(
                ack.token, status.idle, end is not EndOfInput.AHEAD, failed=self._outcome is not RoundOutcome.GOOD
            )
            tasks = self._tasks[output.target.level] if self._tasks else sys.maxsize
            yield from output.barrier_rows(status.watermark, barrier, tasks)


def _end_forked_child(where: str, error: BaseException | None) -> NoReturn:
    """End a child process that a function has forked and that returns from the function as the parent does. As a second
    worker on the same connection, the child would emit every record twice. It ends here, as a process that was told to
    exit, or with its error shown."""
    cause = error.__cause__ if isinstance(error, UserCodeError) else error
    code = cause.code if isinstance(cause, SystemExit) else 1
    if not isinstance(cause, SystemExit) or isinstance(code, str):
        with contextlib.suppress(Exception):
            print(
                f"A child process that a function has forked must end with os._exit.\n  where: {where}", file=sys.stderr
            )
            if error is not None:
                traceback.print_exception(error, file=sys.stderr)
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    os._exit(0 if code is None else code if isinstance(code, int) else 1)

"""Run the writer of a sink for one round."""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable
from functools import partial

from tidegate.base import faults
from tidegate.base.errors import ArgumentTypeError, UserCodeError
from tidegate.base.pickling import find_other
from tidegate.base.user_code import UserValue, user_line
from tidegate.common.conversion import boundary
from tidegate.graph.plan import ChainNode
from tidegate.operators.contracts.arrow_batch import ArrowBatch, is_same_type
from tidegate.operators.contracts.batch import Batch
from tidegate.operators.contracts.functions import checkpointed
from tidegate.operators.contracts.operator import CollectingOperator, EndOfInput, OperatorRound, OperatorSetup
from tidegate.operators.contracts.sink import Prepared, Sink, SinkWriter, UnwrittenSink, WriterContext
from tidegate.operators.contracts.specs import SinkSpec
from tidegate.operators.kinds.own_state import OwnState
from tidegate.operators.loop.blame import is_for_good, not_encodable, user_error
from tidegate.state.snapshot import WRITER, ListPart, OperatorSnapshot, Part, Redistribution

log = logging.getLogger(__name__)


class SinkOperator(CollectingOperator):
    """Write the records of a round to a sink. An error of the sink declines the round; an error of a user function in
    the sink fails the round."""

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        replays = setup.settings.replays
        self._spec = self.operator.spec_as(SinkSpec)
        self._sink: Sink = UnwrittenSink(self._spec.sink) if replays else self._spec.sink
        self._writer: SinkWriter | None = None
        self._convert = boundary(self._spec.type_info) if self._sink.reads_records else None
        function = checkpointed(self._sink.function)
        self._own_state = None if function is None else OwnState(self.operator, setup, function, None)
        self.misfits = [] if self._own_state is None else [self._own_state.states.misfits]

    def fits(self, snapshot: OperatorSnapshot) -> bool:
        return self._own_state is None or self._own_state.fits(snapshot)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._context = self._writer_context(round)
        self._state = snapshot.values(WRITER)
        self._prepared = Prepared()
        if self._own_state is not None:
            self._own_state.restore(snapshot, round)

    def _writer_context(self, round: OperatorRound) -> WriterContext:
        settings, operator = self.setup.settings, self.operator
        return WriterContext(
            job_id=settings.job_id,
            sink_id=operator.uid_hash,
            subtask=self.setup.index,
            parallelism=operator.parallelism,
            round=round.context.round,
            checkpoint_id=round.context.checkpoint_id,
            attempt=round.token,
            now_ms=round.now_ms(),
            staging=f"{settings.root}/taskowned/{operator.uid_hash}",
            lease=settings.lease,
            publishes=settings.publishes_rounds,
            savepoint=round.context.savepoint,
            round_ms=round.context.now_ms,
        )

    @property
    def takes_columns(self) -> bool:  # type: ignore[override]
        return self._sink.takes_columns

    def take_batch(self, batch: Batch) -> None:
        if isinstance(batch, ArrowBatch) and self._is_declared(batch):
            if self.declined is not None:
                return
            self._attempt(partial(self._write_columns, batch))
        else:
            super().take_batch(batch)

    def _is_declared(self, batch: ArrowBatch) -> bool:
        declared = self._spec.type_info
        return self.takes_columns and (declared is None or is_same_type(batch.layout.info, declared))

    def _write_columns(self, batch: ArrowBatch) -> None:
        if self._writer is None:
            self._writer = self._sink.create_writer(self._context, self._state)
        if not self._writer.write_columns(batch):
            self._writer.write_batch(self._declared(list(batch.rows())), batch.time_list())

    def settle(self) -> None:
        if self.values and self.declined is None:
            self._attempt(self._write)
        self.clear()

    def _write(self) -> None:
        if self._writer is None:
            self._writer = self._sink.create_writer(self._context, self._state)
        self._writer.write_batch(self._declared(self.values), self.timestamps or None)

    def _declared(self, values: list[UserValue]) -> list[UserValue]:
        """Convert values to the stream's type: in Flink these values leave Python with the sink, and pass the type's
        serializer."""
        if self._convert is None:
            return values
        try:
            return self._convert(values)
        except ArgumentTypeError as error:
            where = f"records declared as {self._spec.type_info}"
            raise UserCodeError(error.rule, where=where, found=error.found, cure=error.cure) from error

    def prepare_commit(self) -> list[object]:
        """Prepare the writer's commit. Nothing is prepared for a sink that has received nothing, stores nothing and
        does not mark checkpoints."""
        if self._own_state is not None:
            self._own_state.snapshot()  # before its function is closed
        if self.declined is None:
            self._attempt(self._prepare)
        problem = _not_plain(self._prepared)
        if problem is not None:
            raise ArgumentTypeError(
                "prepare_commit must return a Prepared with two lists of plain data "
                "(None, bool, int of 64 bits, float, str without lone surrogates, bytes, list, dict).",
                where=f"sink {self.operator.label}, subtask {self._context.subtask}",
                found=problem,
                cure="convert the data that commit needs to plain data in prepare_commit, and back in the committer",
            )
        return self._prepared.committables

    def _prepare(self) -> None:
        marks = self._sink.marks_checkpoints and self._context.checkpoint_id is not None
        if self._writer is None and (self._state or marks):
            self._writer = self._sink.create_writer(self._context, self._state)
        if self._writer is not None:
            faults.point("K1.before-prepare", sink=self.operator.name, subtask=self._context.subtask)
            self._prepared = self._writer.prepare_commit(self.round.end_of_input is not EndOfInput.AHEAD)

    def _attempt(self, step: Callable[[], None]) -> None:
        try:
            step()
        except UserCodeError as error:
            where = f"operator '{self.operator.name}', {error.where}"
            if user_line(error) is None and self.operator.place:
                where += f", added at {self.operator.place}"
            raise UserCodeError(error.rule, where=where, found=error.found, cure=error.cure) from error.__cause__
        except Exception as error:
            line = user_line(error)
            place = f"sink {self.operator.label}" + (f", {line}" if line else "")
            # an error of one record, which would fail every round with this record
            if isinstance(error, UnicodeEncodeError):
                raise not_encodable(error, place, self.values) from error
            if is_for_good(error):
                raise error.located(place) from error.__cause__
            self.declined = f"{place}: {type(error).__name__}: {error}{_cure_of(error)}"
        except BaseException as error:  # sys.exit and the like: a retry would not help
            raise user_error(error, f"sink {self.operator.label}", None) from error

    def parts(self) -> dict[str, Part]:
        state = self._prepared.state
        parts: dict[str, Part] = {WRITER: ListPart.of(Redistribution.EVEN_SPLIT, state)} if state else {}
        return parts if self._own_state is None else {**parts, **self._own_state.parts()}

    def end(self, *, abort: bool) -> None:
        """Close the writer. Leave what fails here to ``abort_lingering``: a failure must not kill the task after the
        round."""
        writer, self._writer = self._writer, None
        for step in ([writer.abort] if abort else []) + [writer.close] if writer is not None else []:
            try:
                step()
            except Exception as error:
                log.warning("sink %s: %s failed after the round: %s", self.operator.label, step.__name__, error)


def _cure_of(error: Exception) -> str:
    """Return the cure for an error of a library; errors of Tidegate have their own."""
    full = isinstance(error, OSError) and error.errno == errno.ENOSPC
    return "\n  cure: free some space, or let the sink write to another disk" if full else ""


def _not_plain(prepared: object) -> str | None:
    """Find data that is not plain in what the sink hands over: it goes into checkpoints. The error names the sink."""
    if not isinstance(prepared, Prepared):
        return f"{prepared!r:.200} instead of a Prepared"
    for name, items in (("committables", prepared.committables), ("state", prepared.state)):
        if type(items) is not list:
            return f"{name} is of type {type(items).__name__}"
        other = find_other(items, allow_bytes=True)
        if other is not None:
            return f"{other!r:.200} of type {type(other).__name__} in its {name}"
    return None

"""The operators that assign event time: sources, and timestamps and watermarks inside a chain.

A source operator reads the intervals of its splits, gives records timestamps, and gives the chain its watermark.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import partial
from typing import ClassVar

from tidegate.base.errors import ArgumentTypeError, CorruptFileError
from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.conversion import Boundary, Converter
from tidegate.common.typeinfo import RowTypeInfo, TypeInformation
from tidegate.graph.plan import ChainNode, Operator
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts import watermarks
from tidegate.operators.contracts.batch import HIGHEST, LOWEST, Batch, Given
from tidegate.operators.contracts.generators import strategy_of
from tidegate.operators.contracts.operator import (
    CollectingOperator,
    EndOfInput,
    OperatorRound,
    OperatorSetup,
    StreamOperator,
)
from tidegate.operators.contracts.source import SplitInterval, SplitReader
from tidegate.operators.contracts.specs import SourceSpec, TimestampsSpec
from tidegate.operators.contracts.watermarks import EventTime, SplitWatermarks
from tidegate.operators.flow.packing import Packer
from tidegate.operators.flow.rows import MAX_WATERMARK, MIN_WATERMARK
from tidegate.operators.loop.blame import record_in, reprlib_repr, user_error
from tidegate.operators.loop.codegen import LoopSource
from tidegate.operators.loop.rewrites.rewrite import LineOwner
from tidegate.state.snapshot import GENERATOR, SPLITS, ListPart, OperatorSnapshot, Part, Redistribution


def _are_rows(operator: Operator) -> bool:
    return isinstance(operator.output_type, RowTypeInfo)


def _is_tagged(value: UserValue) -> bool:
    return value.__class__ is tuple and len(value) > 0 and value[0].__class__ is OutputTag


def _time_of_record(extract: Callable[[UserValue, int], int], value: UserValue, timestamp: int) -> int:
    """Return the time of a record. A record of a side output has no time of its own: the time of its message may be far
    ahead of the messages that other records are made from."""
    return MIN_WATERMARK if _is_tagged(value) else extract(value, timestamp)


def _untagged(convert: Converter, value: UserValue) -> UserValue:
    return value if _is_tagged(value) else convert(value)


class _Declared:
    """Convert the records of a batch to values of the declared type. A batch that is as declared stays unchanged, as
    rows or as columns."""

    def __init__(self, declared: TypeInformation, node: ChainNode) -> None:
        self._declared, self._node = declared, node
        self._packer, self._boundary = Packer(declared), Boundary(declared)
        convert = self._boundary.convert
        self._convert: Converter = partial(_untagged, convert) if node.operator.spec.emits_tagged else convert

    def __call__(self, batch: Batch) -> Batch:
        if self._packer.carries(batch):
            return batch
        rows = batch.rows()
        if batch.schema is None and self._boundary.is_declared(rows):
            return batch
        try:
            return Batch([self._convert(value) for value in rows], batch.times)
        except ArgumentTypeError:
            raise self._refused(rows) from None

    def _refused(self, values: Sequence[UserValue]) -> ArgumentTypeError:
        for value in values:
            try:
                self._convert(value)
            except ArgumentTypeError as error:
                return ArgumentTypeError(
                    error.rule,
                    where=f"{self._node.place}, type_info {self._declared}",
                    found=f"{error.found}; record {reprlib_repr(value)}",
                    cure="declare the type of the source's records, or declare no type and convert in a map",
                )
        raise AssertionError("a record was refused at first and then accepted")


class SourceOperator(StreamOperator):
    """Run the head of a chain without input. Event time follows the records: ``feeds.py`` orders the splits."""

    emits_fresh: ClassVar[bool] = True

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        spec = self.operator.spec_as(SourceSpec)
        self._source = spec.source
        self._strategy = strategy_of(spec.watermarks, setup, self.operator.name, rows=_are_rows(self.operator))
        self._reader: SplitReader | None = None
        self._announces = spec.source.announces_batches
        self._convert = None if spec.declared is None else _Declared(spec.declared, node)
        if spec.emits_tagged and self._strategy.extract is not None:
            self._strategy.extract = partial(_time_of_record, self._strategy.extract)

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self.output_time.watermark, self.output_time.idle = snapshot.watermark, snapshot.idle
        now = round.now_ms()
        generators: dict[str, UserValue] = {}
        for split, *row in snapshot.values(SPLITS):
            generator = self._strategy.restored(row, now)
            before = generators.get(split)  # of several former subtasks between two splits, the slowest counts
            if before is None or self._strategy.watermark(generator) < self._strategy.watermark(before):
                generators[split] = generator
        plan = round.plan
        self._marks = SplitWatermarks(self._strategy, generators, held=plan.source_held, awaited=plan.source_awaited)
        self._marks.await_first(now)

    # -- reading -------------------------------------------------------------------------------------------------------

    @property
    def interleaves(self) -> bool:
        """Tell whether splits are read side by side; otherwise they are read one after the other."""
        return self.reader.interleaves and not self._source.splits_in_turn

    @property
    def reader(self) -> SplitReader:
        if self._reader is None:
            self._reader = self._source.create_reader(self.setup.index)
        return self._reader

    def begin_reading(self, splits: Iterable[str]) -> None:
        """Begin a round with these splits: event time waits for all of them, unless they are read in turn."""
        if not self._source.splits_in_turn:
            for split in splits:
                self._marks.start(split, self.round.now_ms())

    def begin_split(self, split: str) -> None:
        """Let event time wait for the split from now on, if it does not wait already."""
        self._marks.start(split, self.round.now_ms())

    def waiting(self, splits: Collection[str]) -> None:
        """Note splits with records that are read and not processed: these splits are not idle."""
        self._marks.waiting = splits

    def read(self, interval: SplitInterval) -> Iterator[Batch]:
        """Yield the batches of an interval as records of the declared type, with the timestamps of the assigner. The
        assigner sees the declared type."""
        for batch in map(Batch.of, self._given(interval)):  # no variable keeps the rows of the reader
            if self._convert is not None:
                batch = self._convert(batch)
            try:
                batch = self._strategy.timed(batch)
            except BaseException as error:
                where = f"timestamp assigner of operator '{self.operator.name}'"
                raise user_error(error, where, record_in(error, watermarks.__file__, "value")) from error
            yield batch

    def _given(self, interval: SplitInterval) -> Iterator[Given]:
        try:
            yield from self.reader.read(interval)
        except CorruptFileError as error:
            raise error.within(self.node.place) from error.__cause__

    def emit(self, split: str, batch: Batch) -> None:
        """Emit a batch of the split, and let event time follow its records."""
        now, marks, strategy = self.round.now_ms(), self._marks, self._strategy
        for generator, piece in strategy.pieces(marks.splits[split], batch, now):
            marks.splits[split] = generator
            self.setup.emit(piece)
            if strategy.divides_batches:
                self._advance(now)
                self.setup.advance(now, True)
        marks.periodic(now, split)
        self._advance(now)
        if self._announces:
            self.setup.advance(now, True)

    def watermark(self, split: str) -> int:
        """Return the watermark of one split that is being read."""
        return self._marks.watermark(split)

    def finish(self, split: str) -> None:
        """Note the end of the split: it will never have another record."""
        self._marks.finish(split)

    def _advance(self, now_ms: int) -> None:
        self.output_time.watermark, self.output_time.idle = self._marks.status(self.output_time.watermark, now_ms)

    # -- a round -------------------------------------------------------------------------------------------------------

    def end_round(self, now_ms: int) -> None:
        self._marks.periodic(now_ms)
        self._advance(now_ms)

    def wake_up_ms(self, now_ms: int) -> int | None:
        ended = self.round.end_of_input is not EndOfInput.AHEAD
        return None if ended else self._marks.next_look_ms(now_ms)

    def parts(self) -> dict[str, Part]:
        rows = [(split, *self._strategy.row(generator)) for split, generator in self._marks.splits.items()]
        return {SPLITS: ListPart.of(Redistribution.EVEN_SPLIT, rows)} if rows else {}

    def close(self) -> None:
        super().close()
        if self._reader is not None:
            self._reader.close()


class TimestampsOperator(CollectingOperator):
    """Give records timestamps, and the operators downstream a watermark of their own.

    As in Flink, watermarks from upstream are ignored, except the last one at the end of input.
    """

    takes_columns: ClassVar[bool] = True
    follows_input: ClassVar[bool] = False

    def __init__(self, node: ChainNode, setup: OperatorSetup) -> None:
        super().__init__(node, setup)
        self.output_time = EventTime()
        strategy, self._rows = self.operator.spec_as(TimestampsSpec).watermarks, _are_rows(self.operator)
        self._strategy = strategy_of(strategy, setup, self.operator.name, rows=self._rows)
        self._seen: list[int] = []
        """The times that the loop has given to records of the batch."""

    @property
    def in_loop(self) -> bool:
        strategy = self._strategy
        by_record = self._rows or strategy.of_column is None  # rows that come as columns do not enter the loop
        return strategy.extract is not None and by_record and not strategy.divides_batches

    @property
    def needs_rows(self) -> bool:
        return self._strategy.extract is not None and self._strategy.of_column is None

    def write(self, source: LoopSource, value: str, depth: int, *, keyed: bool, input: int) -> None:
        extract, was_timed = self._strategy.extract, source.timed
        if not self.in_loop or extract is None:
            return super().write(source, value, depth, keyed=keyed, input=input)
        owner = LineOwner(f"timestamp assigner of operator '{self.operator.name}'", value)
        out, former, kind = f"tg_e{self.id}", f"tg_f{self.id}", source.bind("int", int)
        source.line(depth, f"{former} = {MIN_WATERMARK}", owner)
        if was_timed:
            source.line(depth, "if tg_t is not None:", owner)
            source.line(depth + 1, f"{former} = tg_t", owner)
            source.line(depth, f"tg_h{self.id} = tg_t", None)
        source.call(f"e{self.id}", extract, [value, former], out, depth, owner)
        source.line(depth, f"if {out}.__class__ is not {kind} or not {LOWEST} <= {out} <= {HIGHEST}:", owner)
        whole = source.bind(f"e{self.id}whole", self._strategy.whole_time)
        source.line(depth + 1, f"{out} = {whole}({out})", owner)
        source.line(depth, f"{source.bind(f'e{self.id}seen', self._seen.append)}({out})", owner)
        source.line(depth, f"tg_t = {out}", None)
        source.looked_at(extract, value, value)
        source.timed = True
        source.emitted(self, value, depth)
        source.timed = was_timed
        if was_timed:  # for other readers of the record
            source.line(depth, f"tg_t = tg_h{self.id}", None)

    def looks_with(self, looks: Callable[[UserFunction], bool]) -> bool:
        return self.in_loop and self._strategy.extract is not None and looks(self._strategy.extract)

    @property
    def passes_through(self) -> list[UserFunction] | None:
        if self._strategy.divides_batches:  # a user's generator sees the records too
            return None
        return [] if self._strategy.extract is None else [self._strategy.extract]

    def restore(self, snapshot: OperatorSnapshot, round: OperatorRound) -> None:
        super().restore(snapshot, round)
        self._generator = self._strategy.restored(snapshot.values(GENERATOR), round.now_ms())

    def take_batch(self, batch: Batch) -> None:
        if batch.is_columnar:
            self._take(batch)  # as columns
        else:
            super().take_batch(batch)

    def clear(self) -> None:
        super().clear()
        self._seen.clear()

    def settle(self) -> None:
        if self._seen:
            now = self.round.now_ms()
            self._generator = self._strategy.seen(self._generator, self._seen, now)
            self._seen.clear()
            self._strategy.periodic(self._generator, now)
            self._advance(now)
        if self.values:
            batch = Batch(self.values.copy(), self.timestamps.copy() or None)
            self.clear()
            self._take(batch)

    def _take(self, batch: Batch) -> None:
        if not len(batch):
            return
        try:
            batch = self._strategy.timed(batch)
        except BaseException as error:
            record = record_in(error, watermarks.__file__, "value")
            raise user_error(error, f"timestamp assigner of operator '{self.operator.name}'", record) from error
        now = self.round.now_ms()
        for generator, piece in self._strategy.pieces(self._generator, batch, now):
            self._generator = generator
            self.setup.emit(piece)
            if self._strategy.divides_batches:
                self._advance(now)
                self.setup.advance(now, True)
        self._strategy.periodic(self._generator, now)
        self._advance(now)

    def _advance(self, now_ms: int) -> None:
        if self.round.holds_time:
            return
        self.output_time.watermark = max(self.output_time.watermark, self._strategy.watermark(self._generator))
        self.output_time.idle = self._strategy.emits and self._strategy.is_idle(self._generator, now_ms)

    def end_input(self, now_ms: int) -> None:
        self.output_time.watermark, self.output_time.idle = MAX_WATERMARK, False

    def end_round(self, now_ms: int) -> None:
        self._strategy.periodic(self._generator, now_ms)
        self._advance(now_ms)

    def wake_up_ms(self, now_ms: int) -> int | None:
        """Return when the operator turns idle, or when its generator wants to be called."""
        if self.round.end_of_input is not EndOfInput.AHEAD or not self._strategy.emits:
            return None
        if self.output_time.idle and not self._strategy.divides_batches:
            return None
        return self._strategy.next_look_ms(self._generator, now_ms)

    def parts(self) -> dict[str, Part]:
        return {GENERATOR: ListPart.of(Redistribution.SUBTASK, self._strategy.row(self._generator))}

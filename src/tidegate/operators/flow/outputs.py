"""Send the records of an edge: a buffer for each receiver, sent in numbered chunks."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tidegate.base.clock import Stopwatch
from tidegate.base.errors import UserCodeError
from tidegate.base.pickling import cure_of
from tidegate.graph.plan import Edge
from tidegate.graph.transformation import Ship
from tidegate.operators.contracts.arrow_batch import ArrowBatch, Layout, joined, pack_arrow, taken
from tidegate.operators.contracts.batch import BOOL, FLOAT, INT, TEXT, Batch, Column, ColumnBatch, Keys, TimeList
from tidegate.operators.flow.packing import KEYS, PLAIN, Packer, pack_columns, pack_field
from tidegate.operators.flow.rows import BARRIER, DATA, MIN_WATERMARK, Barrier, Payload, Row
from tidegate.operators.loop.rewrites.rewrite import LineOwner
from tidegate.state.key_groups import IntRouter, KeyRouter
from tidegate.state.keys import key_identity

if TYPE_CHECKING:
    from tidegate.operators.loop.codegen import LoopSource

_KEYS: dict[str, type] = {INT: int, FLOAT: float, BOOL: bool, TEXT: str}
Buffer = tuple[list[Any], Keys, TimeList]
"""Values, keys, timestamps; the latter two stay empty where there are none."""


class Receiver:
    """Describe where an edge leads: the level and first partition of the receiving chain, and its parallelism.
    ``place``: the receiving operator, for messages."""

    __slots__ = ("level", "max_parallelism", "offset", "parallelism", "place")

    def __init__(self, level: int, offset: int, parallelism: int, max_parallelism: int, place: str) -> None:
        self.level, self.offset, self.parallelism = level, offset, parallelism
        self.max_parallelism, self.place = max_parallelism, place


_ARROW = -1
"""The width of records in Arrow's record batches: the declared type of the edge has their columns."""


class _Shape(NamedTuple):
    """Hold what column batches of one chunk have in common. ``types``: of all columns, including key and time."""

    width: int
    key_field: int | None
    timed: bool
    types: str


class _Waiting:
    """Hold columns that wait for one receiver of a keyed edge: fields, then the key unless it is a field, then
    timestamps. The fields of Arrow's record batches wait in ``arrow``."""

    __slots__ = ("arrow", "layout", "parts", "records", "shape")

    def __init__(self) -> None:
        self.parts: list[list[Column]] = []
        self.arrow: list[Any] = []
        self.layout: Layout | None = None
        self.records = 0
        self.shape = _Shape(0, None, False, "")

    def clear(self) -> None:
        self.parts, self.arrow, self.records = [], [], 0

    def payload(self) -> Payload:
        columns = [np.concatenate(pieces) for pieces in zip(*self.parts, strict=True)]
        width, key_field, timed, _ = self.shape
        fields = 0 if self.arrow else max(width, 1)
        keys = pack_field(key_field) if key_field is not None else _packed_keys(columns[fields])
        if self.arrow:
            assert self.layout is not None
            records = pack_arrow(joined(self.arrow), self.layout)
        else:
            records = pack_columns(columns[:fields], width)
        return records, keys, pack_columns(columns[-1:], 0) if timed else None


def _packed_keys(keys: Column) -> bytes:
    return pack_columns([keys], 0) if keys.dtype.kind == INT else KEYS.pack(keys.tolist())


class EdgeOutput:
    """Buffer the records of one edge and sending subtask. ``rows`` collects finished chunks until the task yields them.

    Records are routed one by one only where necessary (HASH, CUSTOM). Otherwise one buffer is filled, and divided when
    sent. A keyed edge also takes records as columns. A channel keeps the order of its records: before columns are
    added, waiting rows go into a chunk. So waiting columns are always older than waiting rows, and are sent first.
    """

    def __init__(self, edge: Edge, subtask: int, senders: int, target: Receiver, chunk_records: int) -> None:
        self.edge, self.subtask, self.target, self.chunk_records = edge, subtask, target, chunk_records
        self.rows: list[Row] = []
        self.records = self.bytes = 0
        self.pack_seconds = 0.0
        """How long the packing of chunks took, like ``records`` and ``bytes`` in this round."""
        n = target.parallelism
        ship = edge.partitioning.ship
        self.per_record = ship in (Ship.HASH, Ship.CUSTOM)
        self.buffers: list[Buffer] = [([], [], []) for _ in range(n if self.per_record else 1)]
        appends = [(v.append, k.append, t.append) for v, k, t in self.buffers]
        self.router: Any = None
        self.identity = key_identity(edge.partitioning.key_type)
        if ship is Ship.HASH:
            self.router = KeyRouter(appends, target.max_parallelism, self.identity.check)
        elif ship is Ship.CUSTOM:
            self.router = dict(enumerate(appends))
        self.appends = appends[0]
        self._spread = self._targets_of(ship, senders, n)
        self._next = subtask % len(self._spread)
        self._numbers, self._announced = [0] * n, [MIN_WATERMARK] * n
        self._packer = Packer(edge.record_type, target.place)
        self._waiting = [_Waiting() for _ in range(n)] if ship is Ship.HASH else []
        self._int_router = IntRouter(n, target.max_parallelism)
        self._other_router = KeyRouter(range(n), target.max_parallelism)
        self._watermark = MIN_WATERMARK
        self._timed = False

    def _targets_of(self, ship: Ship, senders: int, n: int) -> list[int]:
        if ship is Ship.GLOBAL:
            return [0]
        if ship is Ship.FORWARD:
            return [self.subtask]
        if ship is Ship.RESCALE:
            first, end = self.subtask * n // senders, (self.subtask + 1) * n // senders
            return list(range(first, max(end, first + 1)))
        return list(range(n))

    def begin(self) -> None:
        """Begin a round, and drop what a failed round has left."""
        self.rows.clear()
        self._numbers = [0] * self.target.parallelism
        self._announced = [MIN_WATERMARK] * self.target.parallelism
        self._watermark = MIN_WATERMARK
        self._timed = False
        self.records = self.bytes = 0
        self.pack_seconds = 0.0
        for buffer in self.buffers:
            if buffer[0]:
                for part in buffer:
                    part.clear()
        for waiting in self._waiting:
            if waiting.records:
                waiting.clear()

    def write(self, source: LoopSource, value: str, depth: int, name: str) -> None:
        """Write the code that adds the record in the variable ``value``. ``name``: the emitting operator."""
        e, partitioning = self.edge.id, self.edge.partitioning
        owner = LineOwner(f"partitioning of the output of operator '{name}'", value)
        add_value, add_key, add_time = f"tg_a{e}_", f"tg_b{e}_", f"tg_t{e}_"
        key = ""
        if partitioning.selector is not None:
            key = source.key(f"s{e}_", partitioning, value, depth, owner)
        if self.per_record:
            where = key
            if partitioning.ship is Ship.CUSTOM:
                where = f"{source.bind(f'p{e}_', partitioning.partitioner)}({key}, {self.target.parallelism})"
            router = source.bind(f"r{e}_", self.router)
            source.line(depth, f"{add_value}, {add_key}, {add_time} = {router}[{where}]", owner)
        else:
            for variable, append in zip((add_value, add_key, add_time), self.appends, strict=True):
                source.bind(variable.removeprefix("tg_"), append)
        source.line(depth, f"{add_value}({value})", owner)
        if partitioning.has_key:
            source.line(depth, f"{add_key}({key})", owner)
        if source.timed:
            source.line(depth, f"{add_time}(tg_t)", owner)

    def expect(self, timed: bool) -> None:
        """Prepare for records with timestamps, or without: a chunk has timestamps for all of its records or for
        none."""
        if timed is not self._timed:
            self.flush(self._watermark, everything=True)
            self._timed = timed

    def carries(self, batch: Batch) -> bool:
        """Tell whether the edge is declared to carry the columns of the batch."""
        return self._packer.carries(batch)

    def _identified(self, keys: Column, key_field: int | None) -> tuple[Column, int | None]:
        """Return the keys in the engine's form, and the field with the same values, if there is one."""
        if _KEYS[keys.dtype.kind] in self.identity.safe:
            if keys.dtype.kind == INT and len(keys):
                self.identity.check(int(keys.min()))
                self.identity.check(int(keys.max()))
            return keys, key_field
        identified = np.empty(len(keys), object)
        identified[:] = list(map(self.identity.identify, keys.tolist()))
        return identified, None

    def _subtasks(self, keys: Column) -> npt.NDArray[np.uint16]:
        """Return the target subtask of each key."""
        if keys.dtype.kind == INT:
            return self._int_router.subtasks(keys)
        return np.fromiter(map(self._other_router.__getitem__, keys.tolist()), np.uint16, len(keys))

    def extend(self, batch: ColumnBatch | ArrowBatch, keys: Column) -> None:
        """Add records as columns, numpy's or Arrow's. ``keys``: the results of the key selector; they are the
        ``key_field`` of the batch if it has one. Raise for a key that is not of the declared type; then nothing is
        added."""
        n = len(self._waiting)
        keys, key_field = self._identified(keys, batch.key_field)
        times = batch.time_column()
        if any(values for values, _, _ in self.buffers):
            self.flush(self._watermark, everything=True)
        every = [*batch.columns, *([] if key_field is not None else [keys]), *([] if times is None else [times])]
        arrow = batch.arrow if isinstance(batch, ArrowBatch) else None
        if n == 1:
            ends = [len(keys)]
        else:
            subtasks = self._subtasks(keys)
            order = np.argsort(subtasks, kind="stable")
            every = [column[order] for column in every]
            arrow = None if arrow is None else taken(arrow, order)
            ends = np.bincount(subtasks, minlength=n).cumsum().tolist()
        types = "".join(column.dtype.kind for column in every)
        shape = _Shape(_ARROW if arrow is not None else batch.width, key_field, times is not None, types)
        start = 0
        for index, (waiting, end) in enumerate(zip(self._waiting, ends, strict=True)):
            if end > start:
                if waiting.parts and shape != waiting.shape:
                    self._send_columns(index, self._watermark)
                waiting.shape = shape
                waiting.parts.append([column[start:end] for column in every])
                if isinstance(batch, ArrowBatch) and arrow is not None:
                    waiting.arrow.append(arrow.slice(start, end - start))
                    waiting.layout = batch.layout
                waiting.records += end - start
            start = end

    def _send_columns(self, index: int, watermark: int) -> None:
        waiting, started = self._waiting[index], Stopwatch.now()
        payload = waiting.payload()
        self.pack_seconds += Stopwatch.now() - started
        self._chunk(index, payload, watermark)
        self.records += waiting.records
        waiting.clear()

    def flush(self, watermark: int, everything: bool) -> None:
        """Turn full buffers, or all waiting records, into chunks. ``watermark``: event time after these records."""
        before, self._watermark = self._watermark, watermark
        least = 1 if everything else self.chunk_records
        for index, waiting in enumerate(self._waiting):
            if waiting.records and self.buffers[index][0]:
                # The new watermark comes after the rows, which come after the columns
                self._send_columns(index, before)
            elif waiting.records >= least:
                self._send_columns(index, watermark)
        if self.per_record:
            for index, buffer in enumerate(self.buffers):
                if len(buffer[0]) >= least:
                    self._chunk(index, self._dump(*buffer), watermark)
                    self._count(buffer)
            if self.edge.partitioning.ship is Ship.HASH:
                self.router.trim()
                self._other_router.trim()
        elif len(self.buffers[0][0]) >= (least if everything else least * len(self._spread)):
            self._divide(watermark)

    def _divide(self, watermark: int) -> None:
        values, keys, times = self.buffers[0]
        ship, spread = self.edge.partitioning.ship, self._spread
        if ship is Ship.BROADCAST:
            payload = self._dump(values, [], times)
            for index in spread:
                self._chunk(index, payload, watermark)
        elif len(spread) == 1:
            self._chunk(spread[0], self._dump(values, keys, times), watermark)
        else:
            if ship is Ship.SHUFFLE:
                order = random.sample(range(len(values)), len(values))
                values[:] = [values[i] for i in order]
                times[:] = [times[i] for i in order] if times else []
            n = len(spread)
            for i in range(min(n, len(values))):
                payload = self._dump(values[i::n], [], times[i::n])
                self._chunk(spread[(self._next + i) % n], payload, watermark)
            self._next = (self._next + len(values)) % n
        self._count(self.buffers[0])

    def _count(self, buffer: Buffer) -> None:
        self.records += len(buffer[0])
        for part in buffer:
            part.clear()

    def _dump(self, values: list[Any], keys: Keys, times: TimeList) -> Payload:
        started = Stopwatch.now()
        try:
            return self._packer.pack(values), KEYS.pack(keys) if keys else None, PLAIN.pack(times) if times else None
        except UserCodeError:  # a record that is not of its declared type
            raise
        except Exception as error:
            raise UserCodeError(
                "Records that travel to another subtask must be picklable",
                where=f"records sent to {self.target.place}",
                found=f"{error}",
                cure=cure_of(error, "emit plain data, tuples, Rows or instances of importable classes"),
            ) from error
        finally:
            self.pack_seconds += Stopwatch.now() - started

    def announce(self, watermark: int) -> None:
        """Send all waiting records, and the watermark to every receiver, also to receivers without a record now."""
        self.flush(watermark, everything=True)
        for index in self._spread:
            if self._announced[index] < watermark:
                self._chunk(index, None, watermark)

    def _chunk(self, index: int, payload: Payload | None, watermark: int) -> None:
        number = self._numbers[index]
        self._numbers[index], self._announced[index] = number + 1, watermark
        if payload is not None:
            self.bytes += sum(len(part) for part in payload if part is not None)
        target = self.target
        self.rows.append(
            (target.level, target.offset + index, DATA, self.edge.id, self.subtask, number, watermark, payload)
        )

    def barrier_rows(self, watermark: int, barrier: Barrier, tasks: int) -> list[Row]:
        """Return one barrier for every task with receiving subtasks, whether or not they were sent a chunk. ``tasks``: how many
        tasks run the receiving level. So a sender costs a row a task, and not a row a subtask."""
        target, chunks = self.target, dict[int, dict[int, int]]()
        for index, number in enumerate(self._numbers):
            if number:
                chunks.setdefault((target.offset + index) % tasks, {})[index] = number
        receiving = [(target.offset + index) % tasks for index in range(min(target.parallelism, tasks))]
        with_chunks = {task: barrier._replace(chunks=counts) for task, counts in chunks.items()}
        return [
            (target.level, task, BARRIER, self.edge.id, self.subtask, 0, watermark, with_chunks.get(task, barrier))
            for task in receiving
        ]

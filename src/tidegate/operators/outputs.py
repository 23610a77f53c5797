"""The leaving end of an edge: column buffers per target, cut into numbered chunks."""

from __future__ import annotations

import random
from typing import Any

from tidegate.common.errors import UserCodeError
from tidegate.graph.plan import Edge
from tidegate.graph.transformation import Ship
from tidegate.operators.columns import PLAIN, Column
from tidegate.operators.rows import BARRIER, DATA, Barrier, Payload, Row
from tidegate.state.key_groups import KeyRouter

Columns = tuple[list[Any], list[Any], list[Any]]
"""Values, keys, timestamps; the latter two stay empty where there are none."""


class Target:
    """Where an edge leads: the level and first partition of the receiving chain, and its parallelism."""

    __slots__ = ("level", "max_parallelism", "name", "offset", "parallelism")

    def __init__(self, level: int, offset: int, parallelism: int, max_parallelism: int, name: str) -> None:
        self.level, self.offset, self.parallelism = level, offset, parallelism
        self.max_parallelism, self.name = max_parallelism, name


class EdgeOutput:
    """Buffers of one edge and sending subtask. ``rows`` collects finished chunks until the task yields them.

    Records are routed per record only where they must be (HASH, CUSTOM); otherwise one buffer is filled and divided when it is cut.
    """

    def __init__(self, edge: Edge, subtask: int, senders: int, target: Target, chunk_records: int) -> None:
        self.edge, self.subtask, self.target, self.chunk_records = edge, subtask, target, chunk_records
        self.rows: list[Row] = []
        self.records = 0
        n = target.parallelism
        ship = edge.partitioning.ship
        self.per_record = ship in (Ship.HASH, Ship.CUSTOM)
        self.buffers: list[Columns] = [([], [], []) for _ in range(n if self.per_record else 1)]
        appends = [(v.append, k.append, t.append) for v, k, t in self.buffers]
        self.router: Any = None
        if ship is Ship.HASH:
            self.router = KeyRouter(appends, target.max_parallelism)
        elif ship is Ship.CUSTOM:
            self.router = dict(enumerate(appends))
        self.appends = appends[0]
        self._spread = self._targets_of(ship, senders, n)
        self._next = subtask % len(self._spread)
        self._numbers = [0] * n
        self._column = Column(edge.record_type)

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
        """A new round: whatever a failed one left is dropped."""
        self.rows.clear()
        self._drop()
        self._numbers = [0] * self.target.parallelism
        self.records = 0

    def _drop(self) -> None:
        for columns in self.buffers:
            for column in columns:
                column.clear()

    def cut(self, watermark: int, everything: bool) -> None:
        """Turn full buffers (or, at the end of the round, all) into chunks."""
        least = 1 if everything else self.chunk_records
        if self.per_record:
            for index, columns in enumerate(self.buffers):
                if len(columns[0]) >= least:
                    self._chunk(index, self._dump(*columns), watermark)
                    self._count(columns)
            if self.edge.partitioning.ship is Ship.HASH:
                self.router.trim()
        elif len(self.buffers[0][0]) >= (least if everything else least * len(self._spread)):
            self._divide(watermark)

    def _divide(self, watermark: int) -> None:
        values, _, times = self.buffers[0]
        ship, spread = self.edge.partitioning.ship, self._spread
        if ship is Ship.BROADCAST:
            payload = self._dump(values, [], times)
            for index in spread:
                self._chunk(index, payload, watermark)
        elif len(spread) == 1:
            self._chunk(spread[0], self._dump(values, [], times), watermark)
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

    def _count(self, columns: Columns) -> None:
        self.records += len(columns[0])
        for column in columns:
            column.clear()

    def _dump(self, values: list[Any], keys: list[Any], times: list[Any]) -> Payload:
        try:
            return self._column.pack(values), PLAIN.pack(keys) if keys else None, PLAIN.pack(times) if times else None
        except Exception as error:
            raise UserCodeError(
                "Records that travel to another subtask must be picklable",
                where=f"records sent to operator '{self.target.name}'",
                found=f"{error}",
                cure="emit plain data, tuples, Rows or instances of importable classes",
            ) from error

    def _chunk(self, index: int, payload: Payload, watermark: int) -> None:
        number = self._numbers[index]
        self._numbers[index] = number + 1
        target = self.target
        self.rows.append(
            (target.level, target.offset + index, DATA, self.edge.id, self.subtask, number, watermark, payload)
        )

    def barrier_rows(self, watermark: int, barrier: Barrier) -> list[Row]:
        """One barrier to every receiving subtask, whether or not it was sent a chunk."""
        target = self.target
        return [
            (target.level, target.offset + index, BARRIER, self.edge.id, self.subtask, number, watermark, barrier)
            for index, number in enumerate(self._numbers)
        ]

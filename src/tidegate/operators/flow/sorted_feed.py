"""Feed batch mode, as in Flink: one key after the other, the records of each key in the order of their timestamps.

A batch job is one round, so all records of a subtask are there before the first record is processed. They are grouped
by key. Records that do not fit into memory are written to runs, ordered by the bytes of the keys, and merged.
"""

from __future__ import annotations

import heapq
import os
import pickle
import tempfile
from collections.abc import Callable, Hashable, Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from typing import IO, Any

from tidegate.base.files import Files
from tidegate.operators.contracts.batch import Batch, Keys, Rows, TimeList
from tidegate.operators.contracts.operator import OperatorRound
from tidegate.operators.flow.feeds import ChannelFeed, Pipeline, SenderFailed
from tidegate.operators.flow.inputs import ChannelSide
from tidegate.operators.flow.rows import BARRIER, MIN_WATERMARK, Ack, Row
from tidegate.state.keys import encode_key

MOST_RECORDS = 1_000_000
"""Held in memory at once."""

Entry = tuple[int | None, int, Any]
"""Timestamp, input, record."""
Group = tuple[bytes, Hashable, list[Entry]]
"""The bytes of a key, the key, its records."""


class KeyedBatchFeed(ChannelFeed):
    """Feed a chain whose first operator is keyed. Records of inputs without a key, for example of a broadcast stream,
    are processed before all others. ``directory``: for records that do not fit into memory."""

    def __init__(
        self, side: ChannelSide, pipeline: Pipeline, files: Files, round: OperatorRound, ack: Ack, directory: str
    ) -> None:
        super().__init__(side, pipeline, files, round, ack)
        self._groups = Groups(directory)

    def steps(self, rows: Iterator[Row]) -> Iterator[Callable[[], None]]:
        for row in rows:
            yield partial(self._receive, row)
        yield self._all_here
        for key, entries in self._groups.sorted():
            yield partial(self._process_key, key, entries)

    def _receive(self, row: Row) -> None:
        for _, _, kind, edge, _, _, _, payload in self._input.ready(row):
            if kind == BARRIER or payload is None:
                continue
            batch, number = self._side.packers[edge].unpack(payload), self._side.inputs[edge]
            self._ack.records_in += len(batch)
            if batch.keys is None:
                self._pipeline.process(number, batch, self._round.now_ms())
                self._pipeline.flush()
            else:
                self._groups.add(batch.keys, batch.time_list() or [None] * len(batch), number, batch.rows())

    def _all_here(self) -> None:
        """Check that the input is complete: an incomplete input must not be processed."""
        self._input.check_complete(self._side.chain)
        if self._input.failed:
            raise SenderFailed

    def _process_key(self, key: Hashable, entries: list[Entry]) -> None:
        entries.sort(key=_moment)
        now = self._round.now_ms()
        for number, run in groupby(entries, key=itemgetter(1)):
            timestamps, _, values = zip(*run, strict=True)
            times = list(timestamps) if any(moment is not None for moment in timestamps) else None
            self._pipeline.process(number, Batch(values, times, [key] * len(values)), now)
        self._head.end_of_key(now)
        self._pipeline.flush()


def _moment(entry: Entry) -> int:
    return MIN_WATERMARK if entry[0] is None else entry[0]


class Groups:
    """Group records by key, in the order in which they came."""

    def __init__(self, directory: str) -> None:
        self._directory = directory
        self._held: dict[Hashable, list[Entry]] = {}
        self._records = 0
        self._runs: list[IO[bytes]] = []

    def add(self, keys: Keys, timestamps: TimeList, number: int, values: Rows) -> None:
        held = self._held
        for key, moment, value in zip(keys, timestamps, values, strict=True):
            entries = held.get(key)
            if entries is None:
                entries = held[key] = []
            entries.append((moment, number, value))
        self._records += len(keys)
        if self._records >= MOST_RECORDS:
            self._spill()

    def _spill(self) -> None:
        os.makedirs(self._directory, exist_ok=True)
        file = tempfile.TemporaryFile(dir=self._directory)  # noqa: SIM115 - it has no name, and ends with the process
        for group in self._ordered():
            pickle.dump(group, file, 5)
        file.seek(0)
        self._runs.append(file)
        self._held, self._records = {}, 0

    def _ordered(self) -> list[Group]:
        groups = [(encode_key(key), key, entries) for key, entries in self._held.items()]
        groups.sort(key=itemgetter(0))
        return groups

    def sorted(self) -> Iterator[tuple[Hashable, list[Entry]]]:
        """Yield every key with all of its records, by the bytes of the keys. The earliest run comes first, so the order
        of arrival is kept."""
        runs = [_read(file) for file in self._runs]
        merged = heapq.merge(*runs, self._ordered(), key=itemgetter(0))
        for _, same in groupby(merged, key=itemgetter(0)):
            (_, key, entries), *more = same
            for _, _, later in more:
                entries = entries + later
            yield key, entries
        for file in self._runs:
            file.close()


def _read(file: IO[bytes]) -> Iterator[Group]:
    while True:
        try:
            yield pickle.load(file)
        except EOFError:
            return

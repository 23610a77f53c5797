"""Test the contract of sinks that overwrite by key (``UpsertSink``, upserts by ``JdbcSink``): the last record counts.

Define how to make the sink, and how to read its output::

    class TestMySink(UpsertContract):
        def make_sink(self, directory):
            return MySink(...)

        def value(self, key, number):
            return (key, number)  # a record of this key

        def visible(self, directory):
            return {key: number}  # what an outside reader sees
"""

from __future__ import annotations

import contextlib
import random
from pathlib import Path
from typing import Any
from unittest import SkipTest

import cloudpickle

from tidegate.operators.contracts.sink import Sink, WriterContext
from tidegate.testing.sink_run import START_MS

_KEYS = 4


class UpsertContract:
    """Test a sink that overwrites by key. Override ``make_sink``, ``value`` and ``visible``."""

    refuses_late_tasks = True
    """False: the target cannot compare versions, so a task that was assumed dead may bring an old value back."""
    seeds = 10

    def make_sink(self, directory: Path) -> Sink:
        """Return a sink that writes into this directory."""
        raise NotImplementedError

    def value(self, key: int, number: int) -> Any:
        """Return the record with this key and this number."""
        raise NotImplementedError

    def visible(self, directory: Path) -> dict[int, int]:
        """Return key -> number of the records that a reader of the target sees now."""
        raise NotImplementedError

    def _write(self, directory: Path, version: tuple[int, int], *entries: tuple[int, int], fails: bool = False) -> None:
        """Run one attempt of a round, in batches of two, by a copy of the sink as in another process."""
        sink: Sink = cloudpickle.loads(cloudpickle.dumps(self.make_sink(directory)))
        lease, round = version
        context = WriterContext("job", "sink", 0, 1, round, None, "attempt", START_MS, str(directory), lease=lease)
        writer = sink.create_writer(context, [])
        for start in range(0, len(entries), 2):
            writer.write_batch([self.value(*entry) for entry in entries[start : start + 2]], None)
        if fails:
            writer.abort()
        else:
            assert writer.prepare_commit(False).committables == []
        writer.close()

    def test_the_last_record_of_a_key_counts(self, tmp_path: Path) -> None:
        self._write(tmp_path, (1, 1), (1, 10), (1, 11), (2, 20), (1, 12))
        assert self.visible(tmp_path) == {1: 12, 2: 20}
        self._write(tmp_path, (1, 2), (2, 21), (3, 30))
        assert self.visible(tmp_path) == {1: 12, 2: 21, 3: 30}

    def test_the_same_round_again_changes_nothing(self, tmp_path: Path) -> None:
        for _ in range(3):
            self._write(tmp_path, (1, 1), (1, 10), (2, 20), (1, 11))
            assert self.visible(tmp_path) == {1: 11, 2: 20}

    def test_a_round_without_records_needs_no_target(self, tmp_path: Path) -> None:
        self._write(tmp_path, (1, 1))
        self._write(tmp_path, (1, 2), (1, 10))
        assert self.visible(tmp_path) == {1: 10}

    def test_what_is_read_again_behind_a_failure_replaces_what_was_there(self, tmp_path: Path) -> None:
        """The rounds differ from those before: old values are visible for a moment, and the final values are right."""
        self._write(tmp_path, (1, 1), (1, 10), (2, 20))
        self._write(tmp_path, (1, 2), (1, 11), (1, 12), fails=True)
        self._write(tmp_path, (2, 1), (1, 10), (2, 20), (1, 11))
        self._write(tmp_path, (2, 2), (1, 12), (2, 21))
        assert self.visible(tmp_path) == {1: 12, 2: 21}

    def test_a_task_that_was_taken_for_dead_brings_nothing_back(self, tmp_path: Path) -> None:
        if not self.refuses_late_tasks:
            raise SkipTest("The sink does not refuse writes of late tasks.")
        self._write(tmp_path, (1, 1), (1, 10), (2, 20))
        self._write(tmp_path, (1, 2), (1, 11))
        self._late(tmp_path, (1, 1), (1, 10), (2, 20))
        assert self.visible(tmp_path) == {1: 11, 2: 20}
        self._write(tmp_path, (2, 1), (1, 12))
        self._late(tmp_path, (1, 9), (1, 11))
        assert self.visible(tmp_path) == {1: 12, 2: 20}

    def _late(self, directory: Path, version: tuple[int, int], *entries: tuple[int, int]) -> None:
        """Write as a late task: the write may fail with an error, or have no effect."""
        with contextlib.suppress(Exception):
            self._write(directory, version, *entries)

    def test_random_runs_end_as_if_nothing_had_failed(self, tmp_path: Path) -> None:
        for seed in range(self.seeds):
            directory = tmp_path / str(seed)
            directory.mkdir()
            dice = random.Random(seed)
            records = [(dice.randrange(_KEYS), number) for number in range(30)]
            self._run_with_failures(directory, records, dice)
            assert self.visible(directory) == dict(records), f"seed {seed}"

    def _run_with_failures(self, directory: Path, records: list[tuple[int, int]], dice: random.Random) -> None:
        lease, round, position, checkpoint = 1, 0, 0, 0
        while position < len(records):
            round += 1
            batch = records[position : position + dice.randint(1, 6)]
            outcome = dice.choice(
                ("accepted", "accepted", "checkpoint", "twice", "failed" if lease < 6 else "accepted")
            )
            if outcome == "twice":
                self._write(directory, (lease, round), *batch, fails=True)
            self._write(directory, (lease, round), *batch, fails=outcome == "failed")
            if outcome == "failed":
                lease, round, position = lease + 1, 0, checkpoint
                continue
            position += len(batch)
            checkpoint = position if outcome == "checkpoint" else checkpoint

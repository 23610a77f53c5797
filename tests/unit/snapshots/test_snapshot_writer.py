"""Savepoints made of rows, and existing ones with something changed: jobs continue from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.unit.snapshots.snapshot_jobs import RECORDS, RULES, every_kind, kept, own_states, read_so_far, run, windows
from tidegate.base.errors import RestoreError, SnapshotError, StateFormatError
from tidegate.common import Time, Types
from tidegate.datastream import KeyedProcessFunction
from tidegate.datastream.state import (
    ListStateDescriptor,
    MapStateDescriptor,
    StateTtlConfig,
    ValueStateDescriptor,
)
from tidegate.snapshots import entries
from tidegate.snapshots.difference import difference
from tidegate.state_reader import SavepointReader, StateRow, TimerRow, Window
from tidegate.state_writer import SavepointWriter

COUNT = ValueStateDescriptor("count", Types.LONG())
EVERY = range(RECORDS)


def _counts(rows: list[Any]) -> dict[str, int]:
    return dict(sorted(rows))


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("per_file", [2, entries.ENTRIES_PER_FILE])
def test_a_job_begins_with_rows_as_its_state(
    tmp_path: Path, parallelism: int, per_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "ENTRIES_PER_FILE", per_file)
    rows = [("k0", 7), *((f"k{n}", 1000 * n) for n in range(4)), ("elsewhere", 5)]
    path = (
        SavepointWriter.new()
        .with_keyed_state("every kind", COUNT, rows, key_type=Types.STRING())
        .write(str(tmp_path / "new"))
    )
    reader = SavepointReader(path)
    assert {row.key: row.value for row in reader.read("every kind", "count")} == dict(rows), "the last one counts"
    counts = _counts(run(every_kind, tmp_path / "jobs", restore=path, parallelism=parallelism))
    assert counts == {f"k{n}": RECORDS // 5 + (1000 * n if n < 4 else 0) for n in range(5)}


@pytest.mark.parametrize("parallelism", [1, 2])
def test_read_change_write_restore(tmp_path: Path, parallelism: int) -> None:
    reader = kept(every_kind, tmp_path / "failed", parallelism=2)
    seen = read_so_far(reader)
    changed = [row._replace(value=row.value + 10_000) for row in reader.read("every kind", "count") if row.key != "k1"]
    writer = SavepointWriter.from_existing(reader.address).with_keyed_state("every kind", "count", changed)
    path = writer.write(str(tmp_path / "new"))

    new = SavepointReader(path)
    assert new.metadata.kind == "savepoint"
    for state in reader.operator("every kind").states:
        if state.name != "count":
            key = lambda row: (row.key, row.map_key)  # noqa: E731
            assert sorted(new.read("every kind", state.name), key=key) == sorted(
                reader.read("every kind", state.name), key=key
            )
    assert set(new.read_timers("every kind")) == set(reader.read_timers("every kind"))
    [change] = [c for c in difference(reader, new) if c.is_change]
    assert [(s.state, s.added, s.removed, s.changed) for s in change.states if s.is_change] == [("count", 0, 1, 4)]

    counts = _counts(run(every_kind, tmp_path / "jobs", restore=path, parallelism=parallelism))
    missing = {key: len([x for x in EVERY if f"k{x % 5}" == key]) for key in counts}
    missing["k1"] -= len([x for x in seen if x % 5 == 1])
    assert counts == {key: n + (0 if key == "k1" else 10_000) for key, n in missing.items()}


def test_every_kind_can_be_written(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path / "failed", parallelism=3)
    writer = SavepointWriter.from_existing(reader.address)
    for state in reader.operator("every kind").states:
        writer.with_keyed_state("every kind", state.name, list(reader.read("every kind", state.name)))
    path = writer.write(str(tmp_path / "new"))
    assert not [change for change in difference(reader, SavepointReader(path)) if change.is_change]
    assert _counts(run(every_kind, tmp_path / "jobs", restore=path)) == {f"k{n}": RECORDS // 5 for n in range(5)}


def test_windows_can_be_written(tmp_path: Path) -> None:
    reader = kept(windows, tmp_path / "failed", parallelism=2)
    writer = SavepointWriter.from_existing(reader.address)
    for uid in ("tumbling", "sliding", "sessions"):
        rows = [row._replace(value=row.value + 1_000_000) for row in reader.read(uid, "window-contents")]
        assert rows and all(type(row.namespace) is Window for row in rows)
        writer.with_keyed_state(uid, "window-contents", rows)
    path = writer.write(str(tmp_path / "new"))
    whole, changed = (run(windows, tmp_path / f"jobs-{n}", restore=p) for n, p in enumerate((reader.address, path)))
    differences = {b - a for a, b in zip(whole, changed, strict=True)}
    assert len(whole) == len(changed) and 0 in differences | {0} and max(changed) >= 1_000_000


def test_operators_can_be_left_out_and_renamed(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path / "failed")
    path = SavepointWriter.from_existing(reader.address).change_uid("every kind", "other").write(str(tmp_path / "new"))
    new = SavepointReader(path)
    assert sorted(new.read("other", "count")) == sorted(reader.read("every kind", "count"))
    with pytest.raises(RestoreError, match="uid other"):
        run(every_kind, tmp_path / "jobs", restore=path)
    path = SavepointWriter.from_existing(path).remove_operator("other").write(str(tmp_path / "without"))
    counts = _counts(run(every_kind, tmp_path / "jobs2", restore=path))
    assert sum(counts.values()) == RECORDS - len(read_so_far(reader))


def test_a_state_can_be_left_out(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path / "failed", parallelism=2)
    writer = SavepointWriter.from_existing(reader.address).remove_state("every kind", "count")
    new = SavepointReader(writer.write(str(tmp_path / "new")))
    assert [s.name for s in new.operator("every kind").states if s.name == "count"] == []
    assert new.count("every kind").keys() == reader.count("every kind").keys() - {"count"}
    counts = _counts(run(every_kind, tmp_path / "jobs", restore=new.address))
    assert sum(counts.values()) == RECORDS - len(read_so_far(reader))


@pytest.mark.parametrize("parallelism", [1, 3])
def test_states_of_operators_themselves(tmp_path: Path, parallelism: int) -> None:
    latest, union = ListStateDescriptor("latest", Types.LONG()), ListStateDescriptor("union", None)
    writer = (
        SavepointWriter.new().with_list_state("highest", latest, [1, 2]).with_union_list_state("highest", union, [9**9])
    )
    path = writer.with_broadcast_state("rules", RULES, {"rule x": 4}).write(str(tmp_path / "new"))
    reader = kept(own_states, tmp_path / "jobs", restore=path, parallelism=parallelism)
    assert {row.value for row in reader.read("highest", "union")} == {9**9}, "the highest of all, in every subtask"
    assert ("rule x", 4) in {(row.map_key, row.value) for row in reader.read("rules", "rules")}


def test_time_to_live_begins_when_it_is_written(tmp_path: Path) -> None:
    short = ValueStateDescriptor("short", Types.LONG())
    short.enable_time_to_live(StateTtlConfig.new_builder(Time.hours(1)).build())
    writer = SavepointWriter.new().with_keyed_state("x", short, [(1, 2), StateRow(2, 3, expires_ms=5)])
    reader = SavepointReader(writer.write(str(tmp_path / "new")))
    assert [row.key for row in reader.read("x", "short")] == [1]
    rows = {row.key: row for row in reader.read("x", "short", expired=True)}
    assert rows[2].expires_ms == 5
    assert 0 <= (rows[1].expires_ms or 0) - reader.metadata.complete_ms <= 3_600_000


# -- mistakes ------------------------------------------------------------------------------------------------------------


def test_rows_of_another_type_leave_nothing_behind(tmp_path: Path) -> None:
    target = tmp_path / "new"
    writer = SavepointWriter.new().with_keyed_state("x", COUNT, [("a", 1), ("b", "text")])
    with pytest.raises(StateFormatError) as refused:
        writer.write(str(target))
    assert refused.value.where == "state 'count', value of LONG"
    assert refused.value.found == "value str 'text' of key str 'b': another type than declared"
    assert not target.exists()
    with pytest.raises(StateFormatError, match=r"\('a', 1, 2\), not \(key, value\)"):
        SavepointWriter.new().with_keyed_state("x", COUNT, [("a", 1, 2)]).write(str(target))
    seen = MapStateDescriptor("seen", Types.LONG(), Types.LONG())
    with pytest.raises(StateFormatError, match=r"not \(key, map key, value\)"):
        SavepointWriter.new().with_keyed_state("x", seen, [("a", {1: 2})]).write(str(target))
    with pytest.raises(StateFormatError, match="key str 'text'"):
        SavepointWriter.new().with_keyed_state("x", COUNT, [("text", 1)], key_type=Types.LONG()).write(str(target))


def test_a_directory_that_is_not_empty_is_refused(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("")
    with pytest.raises(SnapshotError, match="is not empty") as refused:
        SavepointWriter.new().write(str(tmp_path))
    assert refused.value.found == "mine in it"
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_mistakes_are_reported_before_anything_is_written(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path / "failed")
    writer = SavepointWriter.from_existing(reader.address)
    with pytest.raises(SnapshotError, match="The snapshot has no such operator"):
        writer.remove_operator("nobody")
    with pytest.raises(SnapshotError, match="The operator has no such state"):
        writer.remove_state("every kind", "nothing")
    with pytest.raises(SnapshotError, match="The operator has no such state"):
        writer.with_keyed_state("every kind", "nothing", [])
    with pytest.raises(SnapshotError, match="There is no existing snapshot"):
        SavepointWriter.new().remove_operator("nobody")
    with pytest.raises(SnapshotError, match="between 1 and 32768"):
        SavepointWriter.new(max_parallelism=0)
    writer.with_keyed_state("every kind", COUNT, [(1, 1)], key_type=Types.LONG())
    with pytest.raises(SnapshotError) as refused:
        writer.write(str(tmp_path / "new"))
    assert refused.value.found == "keys of type LONG; the others have STRING"


class Rings(KeyedProcessFunction):
    """What rings, and the state the key then has."""

    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(COUNT)

    def process_element(self, value: Any, ctx: Any) -> Any:
        yield from ()

    def on_timer(self, timestamp: int, ctx: Any) -> Any:
        yield ctx.get_current_key(), timestamp, ctx.time_domain().name, self.count.value() or 0


def rings(env: Any, numbers: Any) -> Any:
    return numbers.key_by(lambda x: f"k{x % 5}", key_type=Types.STRING()).process(Rings()).uid("every kind")


@pytest.mark.parametrize("parallelism", [1, 3])
@pytest.mark.parametrize("per_file", [2, entries.ENTRIES_PER_FILE])
def test_a_job_begins_with_rows_as_its_timers(
    tmp_path: Path, parallelism: int, per_file: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(entries, "ENTRIES_PER_FILE", per_file)
    timers = [("k0", 500), ("k0", 500), ("k1", -3), ("elsewhere", 19_000), TimerRow("k2", 1_000, "processing")]
    writer = SavepointWriter.new().with_timers("every kind", timers, key_type=Types.STRING())
    path = writer.with_keyed_state("every kind", COUNT, [("k0", 7)], key_type=Types.STRING()).write(
        str(tmp_path / "new")
    )
    assert {timer.key for timer in SavepointReader(path).read_timers("every kind")} == {"k0", "k1", "k2", "elsewhere"}
    assert run(rings, tmp_path / "jobs", restore=path, parallelism=parallelism) == [
        ("elsewhere", 19_000, "EVENT_TIME", 0),
        ("k0", 500, "EVENT_TIME", 7),
        ("k1", -3, "EVENT_TIME", 0),
        ("k2", 1_000, "PROCESSING_TIME", 0),
    ]


def test_timers_beside_those_of_an_existing_snapshot(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path / "failed", parallelism=2)
    before = set(reader.read_timers("every kind"))
    more = TimerRow("k9", 10**13, "event")
    path = SavepointWriter.from_existing(reader.address).with_timers("every kind", [more]).write(str(tmp_path / "new"))
    assert set(SavepointReader(path).read_timers("every kind")) == {*before, more}
    assert len(before) == 6


@pytest.mark.parametrize(
    ("row", "found"),
    [
        (("k0",), "not (key, time)"),
        (("k0", 1.5), "whole number"),
        ((5, 1), "5"),
        (TimerRow("k0", 1, "lunar"), "lunar"),
        (("k0", 1 << 70), str(1 << 70)),
    ],
)
def test_timers_that_are_none(tmp_path: Path, row: Any, found: str) -> None:
    writer = SavepointWriter.new().with_timers("every kind", [row], key_type=Types.STRING())
    with pytest.raises(StateFormatError, match="A row does not describe a timer") as refused:
        writer.write(str(tmp_path / "new"))
    assert found in str(refused.value.found)
    assert not (tmp_path / "new").exists()
    mixed = SavepointWriter.new().with_timers("a", [], key_type=Types.STRING())
    with pytest.raises(SnapshotError, match="The keyed states of an operator have keys of different types"):
        mixed.with_keyed_state("a", COUNT, [], key_type=Types.LONG()).write(str(tmp_path / "new"))

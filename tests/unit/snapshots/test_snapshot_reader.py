"""Reading snapshots without the program: every kind of state, windows, timers, what is over; damage and mistakes."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.unit.snapshots.snapshot_jobs import every_kind, kept, own_states, read_so_far, windows
from tidegate.base.errors import CorruptFileError, NewerFormatError, RestoreError, SnapshotError
from tidegate.checkpoint.envelope import seal
from tidegate.state_reader import SavepointReader, StateRow, TimerRow, Unreadable, Window

GOLDEN = Path(__file__).parents[2] / "compat" / "golden" / "job-2"


def _by_key(seen: range) -> dict[str, list[int]]:
    return {f"k{n}": [x for x in seen if x % 5 == n] for n in range(5)}


@pytest.mark.parametrize("parallelism", [1, 3])
def test_every_kind_of_keyed_state(tmp_path: Path, parallelism: int) -> None:
    reader = kept(every_kind, tmp_path, parallelism=parallelism)
    own = _by_key(read_so_far(reader))

    def read(name: str) -> dict[Any, Any]:
        rows = list(reader.read("every kind", name))
        found = {row.key: row.value for row in rows}
        assert len(found) == len(rows)
        assert {row.namespace for row in rows} == {None}
        return found

    assert read("count") == {key: len(values) for key, values in own.items()}
    assert read("pickled") == {key: {"last": values[-1]} for key, values in own.items()}
    latest = {key: values[-5:] for key, values in own.items()}
    assert read("items") == latest == read("short-lived items")
    assert read("sum") == {key: sum(values) for key, values in own.items()}
    assert read("mean") == {key: (len(values), sum(values)) for key, values in own.items()}
    assert read("short-lived") == {key: values[-1] for key, values in own.items()}
    seen = {(row.key, row.map_key): row.value for row in reader.read("every kind", "seen")}
    assert seen == {(key, x): str(x) for key, values in own.items() for x in values[-2:]}


def test_operators_and_states_are_reported_with_their_types(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path, parallelism=2)
    info = reader.operator("every kind")
    assert (info.uid, info.parallelism, info.max_parallelism, info.key_type) == ("every kind", 2, 128, "STRING")
    assert reader.operator(info.uid_hash) == reader.operator(info.uid_hash[:6]) == reader.operator(info.name) == info
    states = {state.name: (state.kind, state.type, state.map_key_type, state.ttl_ms) for state in info.states}
    assert states["count"] == ("value", "LONG", "", 0)
    assert states["seen"] == ("map", "STRING", "LONG", 0)
    assert states["mean"] == ("aggregating", "TUPLE<LONG, LONG>", "", 0)
    assert states["pickled"] == ("value", "pickle", "", 0)
    assert states["short-lived"] == ("value", "LONG", "", 3_600_000)
    counts = reader.count("every kind")
    assert {name: counts[name].entries for name in ("count", "seen", "timers")} == {"count": 5, "seen": 10, "timers": 6}
    assert counts["seen"].bytes > 0


def test_timers(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path)
    timers = set(reader.read_timers("every kind"))
    assert timers == {*(TimerRow(f"k{n}", 10**12, "event") for n in range(5)), TimerRow("k0", 10**14, "processing")}


def test_what_is_over_is_left_out_or_shown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = kept(every_kind, tmp_path)
    [first, *_] = reader.read("every kind", "short-lived")
    moment = (first.expires_ms or 0) + 10**9
    monkeypatch.setattr(type(reader.metadata), "complete_ms", property(lambda _: moment))
    assert not list(reader.read("every kind", "short-lived"))
    assert not list(reader.read("every kind", "short-lived items"))
    assert len(list(reader.read("every kind", "short-lived", expired=True))) == 5
    assert len(next(iter(reader.read("every kind", "short-lived items", expired=True))).value) == 5


@pytest.mark.parametrize("parallelism", [1, 2])
def test_states_of_operators_themselves(tmp_path: Path, parallelism: int) -> None:
    reader = kept(own_states, tmp_path, parallelism=parallelism)
    last = read_so_far(reader)[-1]
    latest = [row.value for row in reader.read("highest", "latest")]
    assert len(latest) == 2 * parallelism and max(latest) == last
    assert max(row.value for row in reader.read("highest", "union")) == last
    rules = list(reader.read("rules", "rules"))
    assert {row.map_key: row.value for row in rules} == {f"rule {x % 3}": x for x in range(last - 2, last + 1)}
    assert len(rules) == 3, "all subtasks have the same: it is told once"
    assert {state.name: state.scope for state in reader.operator("highest").states} == {
        "latest": "even-split",
        "union": "union",
    }
    assert reader.count("rules")["rules"].entries == 3


def test_windows_are_namespaces(tmp_path: Path) -> None:
    reader = kept(windows, tmp_path, parallelism=2)
    seen = read_so_far(reader)
    last = seen[-1]

    def contents(uid: str) -> dict[Any, int]:
        return {(row.key, row.namespace): row.value for row in reader.read(uid, "window-contents")}

    start = last - last % 100
    expected = {
        (key, Window(start, start + 100)): sum(x for x in range(start, last + 1) if x % 2 == key) for key in (0, 1)
    }
    assert {place: value for place, value in contents("tumbling").items() if value} == {
        place: value for place, value in expected.items() if value
    }
    slices = {place[1] for place in contents("sliding")}
    assert all(one.end is not None and 0 < one.end - one.start < 30 for one in slices)
    for (key, one), value in contents("sliding").items():
        assert value == sum(x for x in range(one.start, min(one.end, last + 1)) if x % 2 == key)
    # a session keeps the place of its first window
    assert {key: value for (key, _), value in contents("sessions").items()} == {
        key: sum(x for x in seen if x % 2 == key) for key in (0, 1)
    }
    assert {timer.namespace for timer in reader.read_timers("sessions")} == {
        Window(key, max(x for x in seen if x % 2 == key) + 50) for key in (0, 1)
    }


def test_a_snapshot_of_an_earlier_version() -> None:
    reader = SavepointReader(str(GOLDEN))
    assert StateRow(0.5, 20) in set(reader.read("by float", "count"))
    assert {row.map_key % 4 for row in reader.read("by text", "seen") if row.key == "k1"} == {1}


def test_classes_that_cannot_be_imported_are_shown_as_such(tmp_path: Path) -> None:
    import_path = tmp_path / "odd_module.py"
    import_path.write_text("class Odd:\n    pass\n")
    sys.path.insert(0, str(tmp_path))
    try:
        from odd_module import Odd  # type: ignore[import-not-found]

        def build(env: Any, numbers: Any) -> Any:
            return numbers.map(lambda x: Odd()).key_by(lambda x: 1).reduce(lambda a, b: b).uid("odd")

        reader = kept(build, tmp_path / "jobs")
        assert type(next(reader.read("odd", "_reduce")).value) is Odd
    finally:
        sys.path.remove(str(tmp_path))
        del sys.modules["odd_module"]
    value = next(reader.read("odd", "_reduce")).value
    assert isinstance(value, Unreadable)
    assert value.reason == "ModuleNotFoundError: No module named 'odd_module'"
    assert repr(value).startswith("<") and "pickled bytes (ModuleNotFoundError" in repr(value)


# -- mistakes and damage -------------------------------------------------------------------------------------------------


def _copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(GOLDEN, tmp_path / "job-2"))


def test_a_path_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(RestoreError, match="must be a checkpoint") as refused:
        SavepointReader(str(tmp_path / "gone"))
    assert refused.value.found == "no such file or directory"


def test_a_state_file_that_is_cut_is_named(tmp_path: Path) -> None:
    job = _copy(tmp_path)
    for file in (job / "shared").iterdir():
        file.write_bytes(file.read_bytes()[:-5])
    with pytest.raises(CorruptFileError) as damaged:
        list(SavepointReader(str(job / "chk-2")).read("by text", "count"))
    assert "shared/99e04f853445" in (damaged.value.where or "")


def test_metadata_that_is_cut(tmp_path: Path) -> None:
    metadata = _copy(tmp_path) / "chk-2" / "_metadata"
    metadata.write_bytes(metadata.read_bytes()[:-5])
    with pytest.raises(CorruptFileError):
        SavepointReader(str(metadata))


def test_a_newer_format(tmp_path: Path) -> None:
    metadata = _copy(tmp_path) / "chk-2" / "_metadata"
    metadata.write_bytes(seal("tidegate-metadata", 99, {}))
    with pytest.raises(NewerFormatError, match="version 99; this Tidegate reads 2"):
        SavepointReader(str(metadata))


def test_unknown_operators_and_states_are_reported_with_those_there_are() -> None:
    reader = SavepointReader(str(GOLDEN))
    with pytest.raises(SnapshotError) as refused:
        reader.read("nobody", "count")
    assert refused.value.found == "'nobody'; there are 'Sink: Collect', 'by float', 'by text', 'numbers'"
    with pytest.raises(SnapshotError) as refused:
        reader.read("by text", "nothing")
    assert refused.value.found == "'nothing'; there are 'count', 'seen', 'some'"
    with pytest.raises(SnapshotError, match="The snapshot has no such operator"):
        reader.operator("KEYED PROCESS")

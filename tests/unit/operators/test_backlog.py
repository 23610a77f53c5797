"""Records in flight: what is kept comes back in its order, and goes to whom it belongs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

from tidegate.base.errors import CorruptFileError, NewerFormatError, RestoreError, StorageError, UserCodeError
from tidegate.base.files import Files
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.operators.contracts.batch import Batch, ColumnBatch
from tidegate.operators.contracts.watermarks import SplitWatermarks, Strategy
from tidegate.operators.flow import backlog
from tidegate.operators.flow.backlog import GRACE_MS, ChannelBacklog, Pace, SplitBacklog, chosen
from tidegate.operators.flow.packing import KEYS, PLAIN, length_of, pack_columns
from tidegate.operators.flow.rows import Payload, Status
from tidegate.state import in_flight
from tidegate.state.in_flight import InFlightLog, InFlightPart, KeptRow, redistribute
from tidegate.state.key_groups import group_of, range_for
from tidegate.state.keys import form_of
from tidegate.state.refs import KeyGroupRange
from tidegate.state.snapshot import IN_FLIGHT, OperatorSnapshot
from tidegate.state.snapshot import redistribute as redistribute_snapshots

MOST = 16


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


def chunk(*values: int) -> Payload:
    return PLAIN.pack(list(values)), None, None


def keyed(*keys: int) -> Payload:
    return PLAIN.pack([f"v{key}" for key in keys]), KEYS.pack(list(keys)), None


def kept(files: Files, *chunks: Payload, groups: KeyGroupRange | None = None, name: str = "a") -> InFlightPart:
    made = ChannelBacklog(None, files, groups)
    for number, payload in enumerate(chunks):
        made.keep("edge", payload, watermark=number * 10)
    part = made.part(f"shared/{name}", "v", whole=False)
    assert part is not None
    return part


def drained(part: InFlightPart, files: Files, groups: KeyGroupRange | None = None) -> list[tuple[int, Any]]:
    """Event time in front of each value, and the value."""
    found, made = [], ChannelBacklog(part, files, groups)
    while (reader := made.next()) is not None:
        values: Any = PLAIN.unpack_list(reader.row.values)
        keys = None if reader.row.keys is None else KEYS.unpack_list(reader.row.keys)
        numbers = chosen(reader, keys, MOST)
        wanted = range(reader.taken, len(values)) if numbers is None else numbers
        found += [(made.watermark, values[n]) for n in wanted]
        reader.took(reader.row.records)
    assert made.part("shared/none", "v", whole=False) is None
    return found


# -- logs --------------------------------------------------------------------------------------------------------------------


def test_chunks_come_back_in_order_with_the_event_time_in_front_of_them(files: Files) -> None:
    part = kept(files, chunk(1, 2), chunk(3))
    assert (part.records, len(part.files)) == (3, 1)
    assert [value for _, value in drained(part, files)] == [1, 2, 3]
    assert drained(part, files)[-1] == (0, 3), "behind the first chunk"
    assert ChannelBacklog(part, files, None).end == 10


def test_what_is_left_names_the_same_file_from_further_behind(files: Files) -> None:
    first = kept(files, chunk(1, 2, 3), chunk(4))
    again = ChannelBacklog(first, files, None)
    reader = again.next()
    assert reader is not None
    reader.took(2)
    again.keep("edge", chunk(5), watermark=30)
    second = again.part("shared/b", "v", whole=False)
    assert second is not None
    assert [file.path for file in second.files] == ["shared/a-0.in-flight", "shared/b-0.in-flight"]
    assert second.records == 3
    assert [value for _, value in drained(second, files)] == [3, 4, 5]


@pytest.mark.parametrize("how", ["whole", "foreign", "many files"])
def test_what_is_left_is_written_anew_where_it_must_not_name_old_files(
    how: str, files: Files, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = kept(files, chunk(1, 2, 3), chunk(4))
    if how == "foreign":
        part = redistribute([part], 1, MOST, files.root)[0] or part
    if how == "many files":
        monkeypatch.setattr(backlog, "MOST_FILES", 0)
    again = ChannelBacklog(part, files, None)
    reader = again.next()
    assert reader is not None
    reader.took(1)
    left = again.part("shared/b", "v", whole=how == "whole")
    assert left is not None
    assert [(file.path, file.root) for file in left.files] == [("shared/b-0.in-flight", "")]
    assert [value for _, value in drained(left, files)] == [2, 3, 4]


def test_large_backlogs_are_several_files(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_BYTES", 1)
    part = kept(files, chunk(1), chunk(2), chunk(3))
    assert len(part.files) == 3
    assert [value for _, value in drained(part, files)] == [1, 2, 3]


def test_a_chunk_that_was_begun_comes_back_without_what_is_through(files: Files) -> None:
    made = ChannelBacklog(None, files, None)
    made.begin("edge", chunk(1, 2, 3), before=7, watermark=20, taken=2)
    part = made.part("shared/a", "v", whole=False)
    assert part is not None
    assert part.records == 1
    assert drained(part, files) == [(7, 3)]


def test_damage_and_newer_formats_are_told_apart(files: Files) -> None:
    (file,) = kept(files, chunk(1)).files
    content = files.read_bytes(file.path)
    for data, kind in ((content[:-1], CorruptFileError), (b"x" + content, CorruptFileError)):
        files.replace(file.path, data)
        with pytest.raises(kind):
            in_flight.read(files, file)
    newer = content.replace(b"TGINFLIGHT\x01", b"TGINFLIGHT\x02")
    handle = files.write("shared/newer", newer)
    with pytest.raises(NewerFormatError, match="of a format that this Tidegate does not read"):
        in_flight.read(files, type(file)(handle.path, handle.size, handle.hash, "v", file.groups))


# -- rescales ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("before", "after"), [(1, 3), (3, 1), (3, 2), (2, 5)])
def test_keys_go_to_the_subtask_that_owns_them(before: int, after: int, files: Files) -> None:
    keys = list(range(200))
    parts: list[InFlightPart | None] = []
    for subtask in range(before):
        groups = range_for(subtask, before, MOST)
        own = [key for key in keys if group_of(form_of_int(key), MOST) in groups]
        parts.append(kept(files, keyed(*own[:9]), keyed(*own[9:]), groups=groups, name=f"s{subtask}"))
    found: dict[int, int] = {}
    for subtask, part in enumerate(redistribute(parts, after, MOST, "")):
        assert part is not None
        groups = range_for(subtask, after, MOST)
        mine = [int(value[1:]) for _, value in drained(part, files, groups)]
        assert all(group_of(form_of_int(key), MOST) in groups for key in mine)
        found |= dict.fromkeys(mine, subtask)
    assert sorted(found) == keys


def form_of_int(key: int) -> Any:
    return form_of(PLAIN.pack([key])[1:])


def test_event_time_waits_for_a_later_turn_of_one_subtask_after_the_first_turn_of_another(files: Files) -> None:
    """Turns count within a former subtask: the only log of another one may reach far beyond their begin."""
    [second] = kept(files, chunk(1), name="second").logs
    two = InFlightPart((msgspec.structs.replace(second, turn=1, watermark=5, end=30),))  # its first turn is through
    [together] = redistribute([two, kept(files, *(chunk(n) for n in range(10, 14)), name="other")], 1, MOST, "")
    assert together is not None
    assert [log.mixed for log in together.logs] == [True] * 2
    found = {value: mark for mark, value in drained(together, files)}
    assert found[13] == 5, "not 20, which its own log has come to"


def test_logs_of_several_subtasks_in_one_are_mixed_until_they_are_through(files: Files) -> None:
    """What comes meanwhile is not: it has a turn of its own, and its order is right."""
    parts = [kept(files, chunk(n), chunk(n + 10), name=f"s{n}") for n in range(2)]
    assert not any(log.mixed for part in redistribute(parts, 3, MOST, "") if part is not None for log in part.logs)
    [together] = redistribute(parts, 1, MOST, "")
    assert together is not None
    first = ChannelBacklog(together, files, None)
    while first.readers[0].waits:
        first.readers[0].took(1)
    assert first.is_mixed, "one of the two is through, the other is not"
    first.keep("edge", chunk(30), watermark=50)
    left = first.part("shared/b", "v", whole=False)
    assert left is not None
    assert [(log.turn, log.mixed) for log in left.logs] == [(0, True), (1, False)]
    then = ChannelBacklog(left, files, None)
    mixed = []
    while (reader := then.next()) is not None:
        mixed.append(then.is_mixed)
        reader.took(reader.row.records)
    assert mixed == [True, True, False]


def test_event_time_is_that_of_the_log_that_is_behind(files: Files) -> None:
    early = InFlightLog(kept(files, chunk(1), name="a").files, 1, 1, watermark=5, end=8)
    late = InFlightLog(kept(files, chunk(2), name="b").files, 1, 1, watermark=50, end=80)
    made = ChannelBacklog(InFlightPart((late, early)), files, None)
    assert made.watermark == 5
    reader = made.next()
    assert reader is not None
    reader.took(1)
    assert made.watermark == 8
    assert made.end == 8


def test_what_comes_after_several_logs_waits_for_all_of_them(files: Files) -> None:
    both = InFlightPart((*kept(files, chunk(1), name="a").logs, *kept(files, chunk(2), name="b").logs))
    made = ChannelBacklog(both, files, None)
    made.keep("edge", chunk(3), watermark=100)
    part = made.part("shared/c", "v", whole=False)
    assert part is not None
    assert [log.turn for log in part.logs] == [0, 0, 1]
    assert [value for _, value in drained(part, files)] == [1, 2, 3]


def test_records_without_keys_stay_whole_and_sources_keep_a_log_for_each_split(files: Files) -> None:
    made = SplitBacklog(None, files)
    made.keep("p0", Batch(range(3), [1, 2, 3]))
    made.keep("p1", ColumnBatch.of_scalars([7, 8], times=np.array([5, 6])))
    made.end("p1")
    part = made.part("shared/a", "v", whole=False)
    assert part is not None
    assert [(log.split, log.records, log.ends) for log in part.logs] == [("p0", 3, False), ("p1", 2, True)]
    assert len(part.files) == 1
    assert [p is not None for p in redistribute([part, None], 1, MOST, "")] == [True]
    again = SplitBacklog(part, files)
    reader = again.of("p1")
    assert reader is not None
    batch = again.batch(reader)
    assert (batch.rows(), batch.times) == ([7, 8], [5, 6])
    assert batch.columns[0].dtype == np.dtype(np.int64)


def test_a_partitioner_of_the_users_pins_its_records(files: Files) -> None:
    made = ChannelBacklog(None, files, None, pinned={"edge"})
    made.keep("edge", chunk(1), watermark=0)
    part = made.part("shared/a", "v", whole=False)
    assert redistribute([part, None], 2, MOST, "") == [part, None]
    with pytest.raises(RestoreError, match="forward, rescale or custom connections cannot follow") as caught:
        redistribute([part, None], 3, MOST, "")
    assert caught.value.found == "2 subtasks in the checkpoint, 3 now"


def test_snapshots_hand_it_on_with_everything_else(files: Files) -> None:
    part = kept(files, chunk(1))
    snapshot = OperatorSnapshot({IN_FLIGHT: part})
    assert snapshot.files() == list(part.files)
    assert snapshot.has_state
    assert snapshot.without(IN_FLIGHT).in_flight is None
    moved = snapshot.with_files(lambda file: type(file)("x", file.size, file.hash, "v", file.groups))
    assert [file.path for file in moved.files()] == ["x"]
    assert redistribute_snapshots([snapshot], 1, MOST)[0].in_flight == part


def test_a_record_of_a_source_that_cannot_be_stored_is_named() -> None:
    with pytest.raises(UserCodeError, match="must be picklable") as caught:
        SplitBacklog(None, Files("memory://x")).keep("p0", Batch([lambda: 1]))
    assert caught.value.where == "split 'p0' of a source"


@pytest.mark.parametrize("count", [0, 1, 15, 16, 300, 70_000])
def test_chunks_are_counted_without_being_unpacked(count: int) -> None:
    assert length_of(PLAIN.pack(list(range(count)))) == count
    assert length_of(PLAIN.pack([(n,) for n in range(count)])) == count
    assert length_of(KEYS.pack([f"{n}" for n in range(count)])) == count
    assert length_of(pack_columns([np.arange(count), np.arange(count)], 2)) == count
    rows = [KeptRow("e", 0, count, b"", None, None)]
    assert rows[0].size == 0


# -- pace --------------------------------------------------------------------------------------------------------------------


class Clock:
    """A function that takes ``each`` milliseconds a record."""

    def __init__(self) -> None:
        self.ms = 1000

    def __call__(self) -> int:
        return self.ms


def worked(deadline: int, each: float, records: int) -> tuple[int, list[int]]:
    clock = Clock()
    pace, sizes, done = Pace(deadline, clock), [], 0
    for start, end in pace.pieces(0, records):
        sizes.append(end - start)
        clock.ms += int((end - start) * each)
        done = end
    return done, sizes


def test_pieces_grow_while_they_are_quick() -> None:
    done, sizes = worked(10_000, 0.01, 100_000)
    assert done == 100_000
    assert sizes[:4] == [8, 16, 32, 64]
    assert len(sizes) < 30


def test_a_slow_function_is_stopped_soon_after_the_deadline() -> None:
    done, sizes = worked(2_000, 10, 100_000)
    assert 1_000 <= done * 10 <= 1_250
    assert max(sizes) <= 16


def test_a_very_slow_one_is_taken_record_by_record() -> None:
    _, sizes = worked(60_000, 1_000, 100)
    assert sizes[-1] == 1


def test_some_is_always_done() -> None:
    """However late it is, or wrong the clock."""
    assert worked(0, 1_000, 100)[0] == 8
    assert worked(0, 1, 1_000)[0] * 1 >= GRACE_MS


def test_what_is_over_stays_over_also_if_the_clock_is_set_back() -> None:
    clock = Clock()
    pace = Pace(0, clock)
    for _ in pace.pieces(0, 1):
        clock.ms += 1000
    assert pace.is_over()
    clock.ms = 0
    assert pace.is_over()


def test_a_round_that_cannot_store_all_of_it_leaves_no_file(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backlog, "MOST_BYTES", 1)
    made = ChannelBacklog(None, files, None)
    for number in range(3):
        made.keep("edge", chunk(number), watermark=0)
    files.write("shared/a-2.in-flight", b"in the way")
    with pytest.raises(StorageError):
        made.part("shared/a", "v", whole=False)
    assert files.list("shared") == ["shared/a-2.in-flight"]


def test_splits_that_wait_for_their_turn_do_not_make_a_source_idle() -> None:
    marks = SplitWatermarks(Strategy(WatermarkStrategy.for_monotonous_timestamps()), {})
    assert marks.status(5, 0) == Status(5, True)
    marks.waiting = ["b"]
    assert marks.status(5, 0) == Status(5, False)

"""Which files are merged: bounded lists, bounded writing, whatever the sizes."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tidegate.base.files import Files
from tidegate.state import materialize
from tidegate.state.layout import GROUP_BYTES, STATE, TIMERS
from tidegate.state.materialize import FAN_IN, LONGEST_LIST, merge_files, plan
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.segments import SegmentWriter, read

ALL = KeyGroupRange(0, 15)


def file(size: int, number: int = 0) -> StateFile:
    return StateFile(f"shared/{number}", size, "", f"v{number}", ALL, size)


def simulate(sizes: list[int], merged_size: Callable[[list[StateFile]], int]) -> tuple[int, float]:
    """Append files of these sizes one by one, merge as planned; the longest list and the write amplification."""
    files: list[StateFile] = []
    longest = written = 0
    for number, size in enumerate(sizes):
        run = plan(files)  # as a round does: the list it began with is compacted, its own segment comes after
        if run is not None:
            start, end = run
            assert end - start >= 2
            merged = file(merged_size(files[start:end]), number)
            written += merged.size
            files[start:end] = [merged]
        files.append(file(size, number))
        longest = max(longest, len(files))
    return longest, 1 + written / sum(sizes)


def total(run: list[StateFile]) -> int:
    return sum(file.size for file in run)


def levels(sizes: list[int]) -> float:
    return math.log(max(FAN_IN, sum(sizes) / materialize.SMALLEST_TIER), FAN_IN)


DISTRIBUTIONS: dict[str, Callable[[random.Random], int]] = {
    "equal": lambda _: 100_000,
    "tiny": lambda _: 300,
    "uniform": lambda random: random.randrange(1_000, 1_000_000),
    "lognormal": lambda random: int(random.lognormvariate(11, 2)),
    "spikes": lambda random: 50_000_000 if random.random() < 0.01 else 500,
}


@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_lists_stay_short_and_bytes_are_rewritten_a_logarithmic_number_of_times(name: str) -> None:
    sizes = [DISTRIBUTIONS[name](random.Random(seed)) for seed in range(3000)]
    longest, amplification = simulate(sizes, total)
    assert longest <= 2 * FAN_IN * (1 + levels(sizes))
    # the smallest tier may be rewritten up to 128 KiB for each seven files
    floor = 2 * materialize.SMALLEST_TIER * len(sizes) / (FAN_IN - 1) / sum(sizes)
    assert amplification <= 3 * (2 + levels(sizes)) + floor


def test_a_state_of_constant_size_is_rewritten_less_than_it_is_logged() -> None:
    # every round changes all of it: the base is as large as a segment
    longest, amplification = simulate([400_000] * 2000, lambda run: max(file.size for file in run))
    assert longest <= 2 * FAN_IN
    assert amplification < 1.3


def test_tiny_rounds_never_touch_a_large_base() -> None:
    files = [file(1 << 30)]
    touched = 0
    for number in range(5000):
        run = plan(files)
        if run is not None:
            touched += run[0] == 0
            files[run[0] : run[1]] = [file(total(files[run[0] : run[1]]), number)]
        files.append(file(200, number))
    assert touched == 0
    assert len(files) <= 3 * FAN_IN


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 40).map(lambda power: int(1.6**power) * 50), min_size=200, max_size=400))
def test_no_order_of_sizes_makes_the_list_too_long(sizes: list[int]) -> None:
    assert simulate(sizes, total)[0] <= LONGEST_LIST + 2


def test_sizes_made_to_defeat_the_tiers_are_merged_at_last() -> None:
    files = [file(materialize.SMALLEST_TIER * 3 ** (_ruler(number) * 2)) for number in range(1, LONGEST_LIST + 2)]
    run = plan(files)
    assert run is not None
    assert run[1] - run[0] >= FAN_IN


def _ruler(number: int) -> int:
    return (number & -number).bit_length() - 1


def test_short_lists_are_left_alone() -> None:
    assert plan([]) is None
    assert plan([file(10)] * (FAN_IN - 1)) is None
    assert plan([file(10)] * FAN_IN) == (0, FAN_IN)
    assert plan([file(1 << 30)] + [file(10)] * FAN_IN) == (1, 1 + FAN_IN)


def write(files: Files, name: str, table: int, entries: dict[bytes, bytes | None]) -> StateFile:
    writer = SegmentWriter(files, name)
    writer.add(table, [part for key in sorted(entries) for part in (key, entries[key])], deletes=True)
    return writer.finish(version=name, groups=ALL)


entries = st.dictionaries(
    st.tuples(st.integers(0, 3), st.sampled_from([b"a", b"b", b"c"])).map(lambda pair: GROUP_BYTES[pair[0]] + pair[1]),
    st.none() | st.binary(max_size=3),
)


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from([STATE, TIMERS]), entries), min_size=1, max_size=6), st.booleans())
def test_a_merge_has_the_last_entry_of_every_key(
    tmp_path_factory: pytest.TempPathFactory, parts: list[tuple[int, dict[bytes, bytes | None]]], drop: bool
) -> None:
    files = Files(str(tmp_path_factory.mktemp("files")))
    run = [write(files, f"part-{number}", table, changes) for number, (table, changes) in enumerate(parts)]
    groups = KeyGroupRange(1, 2)
    writer = SegmentWriter(files, "merged")
    merge_files(writer, files, run, groups, drop_deletions=drop, expired=lambda key, value: value == b"")
    ref = writer.finish(version="v", groups=groups)
    model: dict[tuple[int, bytes], bytes | None] = {}
    for table, changes in parts:
        model.update(
            {(table, key): value for key, value in changes.items() if GROUP_BYTES[1] <= key[:2] <= GROUP_BYTES[2]}
        )
    if drop:
        model = {place: value for place, value in model.items() if value is not None}
        model = {place: value for place, value in model.items() if place[0] == TIMERS or value != b""}
    found = [
        ((batch.table, key), value)
        for batch in read(files, ref)
        for key, value in zip(batch.flat[::2], batch.flat[1::2], strict=True)
    ]
    assert found == sorted(model.items())


def test_merging_reads_corrupt_files_with_an_error(tmp_path: Path) -> None:
    files = Files(str(tmp_path))
    ref = write(files, "part", STATE, {GROUP_BYTES[1] + b"k": b"v"})
    (tmp_path / "part").write_bytes(b"x" * ref.size)
    writer = SegmentWriter(files, "merged")
    with pytest.raises(Exception, match="is not what was written"):
        merge_files(writer, files, [ref, ref], ALL, drop_deletions=False, expired=lambda *_: False)

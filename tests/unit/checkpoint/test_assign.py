"""Restoring into another parallelism and into another program."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.assign import (
    CURE_OF_KEYS,
    CURE_OF_REMOVED,
    CURE_OF_STATES,
    Matched,
    Misfit,
    ProgramOperator,
    match_operators,
    refusal,
)
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.state.key_groups import range_for
from tidegate.state.refs import StateFile, StateSchema, schema_mismatch
from tidegate.state.snapshot import KEYED, WRITER, KeyedPart, ListPart, OperatorSnapshot, Redistribution, redistribute


def operator_state(
    parallelism: int,
    maximum: int,
    files: int = 2,
    name: str = "op",
    schemas: tuple[StateSchema, ...] = (),
    **fields: Any,
) -> OperatorState:
    subtasks = []
    for subtask in range(parallelism):
        groups = range_for(subtask, parallelism, maximum)
        refs = tuple(StateFile(f"shared/{name}-{subtask}-{n}", 1, "", f"{n}", groups) for n in range(files))
        subtasks.append(OperatorSnapshot({KEYED: KeyedPart(groups, refs, schemas, fields.get("key_type", ""))}))
    fields.pop("key_type", None)
    return OperatorState(
        uid_hash=name, name=name, parallelism=parallelism, max_parallelism=maximum, subtasks=subtasks, **fields
    )


def keyed(snapshots: list[OperatorSnapshot]) -> list[KeyedPart]:
    return [snapshot.keyed for snapshot in snapshots if snapshot.keyed is not None]


def content(snapshots: list[OperatorSnapshot]) -> dict[int, list[str]]:
    """Which files each key group is read from, in order."""
    groups: dict[int, list[str]] = {}
    for part in keyed(snapshots):
        for file in part.files:
            for group in range(file.groups.first, file.groups.last + 1):
                assert group in part.groups
                groups.setdefault(group, []).append(file.path)
    return groups


@given(st.integers(1, 200), st.data())
def test_every_group_is_read_once_from_its_files_in_order(maximum: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, maximum))
    first = data.draw(st.integers(1, maximum))
    second = data.draw(st.integers(1, maximum))
    stored = operator_state(old, maximum).subtasks
    rescaled = redistribute(stored, first, maximum)
    assert content(rescaled) == content(stored)
    # A rescale of a rescale, as after two restores without a new segment in between.
    assert content(redistribute(rescaled, second, maximum)) == content(stored)
    assert [part.groups for part in keyed(rescaled)] == [range_for(n, first, maximum) for n in range(first)]


def test_the_same_parallelism_is_the_same_list() -> None:
    stored = operator_state(3, 128).subtasks
    assert redistribute(stored, 3, 128) == stored


def test_files_of_another_directory_say_so() -> None:
    assigned = redistribute(operator_state(1, 128).subtasks, 2, 128, root="s3://old/job")
    assert {file.root for snapshot in assigned for file in snapshot.files()} == {"s3://old/job"}


def test_an_operator_without_state_starts_empty() -> None:
    empty = [OperatorSnapshot({KEYED: KeyedPart(range_for(0, 1, 128))})]
    assert keyed(redistribute(empty, 2, 128)) == [KeyedPart(range_for(0, 2, 128)), KeyedPart(range_for(1, 2, 128))]


def test_schemas_and_key_type_reach_every_new_subtask() -> None:
    total, last = StateSchema("total", "value", "LONG"), StateSchema("last", "value", "STRING")
    one = operator_state(1, 128, schemas=(total,), key_type="LONG").subtasks
    other = operator_state(1, 128, schemas=(last,)).subtasks
    for part in keyed(redistribute([*one, *other], 3, 128)):
        assert part.schemas == (total, last)
        assert part.key_type == "LONG"


def lists(how: Redistribution, *held: list[str]) -> list[OperatorSnapshot]:
    return [OperatorSnapshot({"x": ListPart.of(how, items)} if items else {}) for items in held]


@pytest.mark.parametrize(
    ("how", "to", "expected"),
    [
        (Redistribution.EVEN_SPLIT, 1, [["a", "b", "c"]]),
        (Redistribution.EVEN_SPLIT, 2, [["a", "b"], ["c"]]),
        (Redistribution.EVEN_SPLIT, 3, [["a"], ["b"], ["c"]]),
        (Redistribution.EVEN_SPLIT, 4, [["a"], ["b"], ["c"], []]),
        (Redistribution.UNION, 1, [["a", "b", "c"]]),
        (Redistribution.UNION, 2, [["a", "b", "c"], ["a", "b", "c"]]),
        (Redistribution.BROADCAST, 3, [["a", "b"], ["c"], ["a", "b"]]),
        (Redistribution.BROADCAST, 1, [["a", "b"]]),
        (Redistribution.SUBTASK, 2, [["a", "b"], ["c"]]),
        (Redistribution.SUBTASK, 3, [[], [], []]),
    ],
)
def test_lists_are_redistributed_as_their_part_says(how: Redistribution, to: int, expected: list[list[str]]) -> None:
    found = redistribute(lists(how, ["a", "b"], ["c"]), to, 128)
    assert [snapshot.values("x") for snapshot in found] == expected


def test_the_lowest_watermark_counts_after_a_rescale_and_nobody_starts_idle() -> None:
    stored = [OperatorSnapshot({}, 5), OperatorSnapshot({}, 9, True)]
    assert redistribute(stored, 2, 128) == [OperatorSnapshot({}, 5), OperatorSnapshot({}, 9)]
    assert [snapshot.watermark for snapshot in redistribute(stored, 3, 128)] == [5, 5, 5]
    assert [snapshot.watermark for snapshot in redistribute([], 2, 128)] == [-(2**63)] * 2


# -- matching --


def metadata_of(*operators: OperatorState) -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint_id=1, job_id="j", job_name="n", token=1, trigger_ms=0, complete_ms=0, round=1,
        operators=list(operators),
    )  # fmt: skip


def test_matching_operators_and_new_ones() -> None:
    state = operator_state(1, 128, name="totals")
    operators = [ProgramOperator("new", "new", 1, 128), ProgramOperator("totals", "totals", 4, 128)]
    assert match_operators(metadata_of(state), operators, where="chk-1") == Matched({"totals": state})


def test_removed_operator_without_state_is_no_loss() -> None:
    empty = OperatorState(
        uid_hash="map", name="map", parallelism=1, max_parallelism=128, subtasks=[OperatorSnapshot({}, 3)]
    )
    assert match_operators(metadata_of(empty), [], where="chk-1") == Matched({})


def test_all_mismatches_are_reported_together() -> None:
    total = StateSchema("total", "value", "LONG")
    metadata = metadata_of(
        operator_state(1, 128, name="totals", schemas=(total, StateSchema("last", "value", "STRING"))),
        operator_state(1, 128, name="gone", uid="gone-uid", schemas=(total,)),
        OperatorState(uid_hash="out", name="out", parallelism=1, max_parallelism=1, committables=[b"1", b"2"]),
        OperatorState(uid_hash="in", name="in", parallelism=1, max_parallelism=1, source=[1]),
        operator_state(1, 128, name="wide"),
        operator_state(1, 128, name="by", key_type="LONG"),
    )
    operators = [
        ProgramOperator("totals", "totals", 1, 128),
        ProgramOperator("wide", "wide", 1, 256),
        ProgramOperator("in", "in", 1, 1),
        ProgramOperator("by", "by", 1, 128, key_type="STRING"),
    ]
    matched = match_operators(metadata, operators, where="/job/chk-1")
    assert [(misfit.uid_hash, misfit.found) for misfit in matched.misfits] == [
        ("wide", "operator 'wide' (uid wide) is stored with maximum parallelism 128 and now has 256"),
        ("in", "operator 'in' (uid in) is stored as a source and is no source now"),
        ("by", "operator 'by' (uid by) is stored with keys of type LONG and now has STRING"),
        ("gone", "operator 'gone' (uid gone-uid; states: total) is not in the program"),
        ("out", "operator 'out' (uid out; 2 outputs not yet committed) is not in the program"),
    ]
    assert set(matched.states) == {"totals", "wide", "in", "by"}, "what a rehearsal can look at further"


def test_the_report_has_the_order_of_the_program_and_every_cure_once() -> None:
    misfits = [
        Misfit("gone", "operator 'gone' is not in the program", CURE_OF_REMOVED),
        Misfit("b", "operator 'b': state 'x'", CURE_OF_STATES),
        Misfit("a", "operator 'a' is stored with keys of type LONG and now has STRING", CURE_OF_KEYS),
        Misfit("a", "operator 'a': state 'y'", CURE_OF_STATES),
    ]
    report = refusal("/job/chk-1", misfits, ["a", "b"])
    assert str(report) == (
        "The program does not fit the state that it restores.\n"
        "  where: /job/chk-1\n"
        "  found: \n"
        "    - operator 'a' is stored with keys of type LONG and now has STRING\n"
        "    - operator 'a': state 'y'\n"
        "    - operator 'b': state 'x'\n"
        "    - operator 'gone' is not in the program\n"
        "  cure: \n"
        "    - keys: declare the previous key type; or give the operator another uid, and it starts empty\n"
        "    - a state: declare the state as before, or give the changed state another name, which then starts empty\n"
        "    - an operator that is not in the program: add the operator again; or give its uid to the operator that "
        "replaces it; or drop its state (run -n, execution.state-recovery.ignore-unclaimed-state: true)"
    )
    assert refusal(None, misfits[:1]).cure == CURE_OF_REMOVED


def test_what_a_writer_has_open_is_not_lost_to_an_operator_that_is_no_sink() -> None:
    open_file = OperatorSnapshot({WRITER: ListPart.of(Redistribution.EVEN_SPLIT, [{"parts": ["a"]}])})
    state = OperatorState(uid_hash="out", name="out", parallelism=1, max_parallelism=1, subtasks=[open_file])
    matched = match_operators(metadata_of(state), [ProgramOperator("out", "out", 1, 1)], where="/job/chk-1")
    assert [misfit.found for misfit in matched.misfits] == [
        "operator 'out' (uid out) is stored as a sink with output to commit and is no sink now"
    ]
    sink = ProgramOperator("out", "out", 1, 1, is_sink=True)
    assert match_operators(metadata_of(state), [sink], where="/job/chk-1").misfits == ()


def test_dropping_state_can_be_allowed_changing_keys_cannot() -> None:
    metadata = metadata_of(operator_state(1, 128, name="gone"), operator_state(1, 128, name="totals", key_type="LONG"))
    same = ProgramOperator("totals", "totals", 1, 128, key_type="LONG")
    matched = match_operators(metadata, [same], where="chk-1", allow_non_restored_state=True)
    assert set(matched.states) == {"totals"}
    assert matched.misfits == ()
    changed = ProgramOperator("totals", "totals", 1, 128, key_type="STRING")
    matched = match_operators(metadata, [changed], where="chk-1", allow_non_restored_state=True)
    assert [misfit.uid_hash for misfit in matched.misfits] == ["totals"]


def test_schema_mismatch() -> None:
    stored = [StateSchema("m", "map", "LONG", "STRING"), StateSchema("v", "value", "LONG")]
    assert schema_mismatch(stored, StateSchema("v", "value", "LONG")) is None
    assert schema_mismatch(stored, StateSchema("v", "value", "LONG", ttl_ms=5)) == (
        "state 'v' is stored as value of LONG and declared as value of LONG with time to live"
    )
    assert schema_mismatch(stored, StateSchema("new", "value", "LONG")) is None
    assert schema_mismatch(stored, StateSchema("m", "map", "LONG", "INT")) == (
        "state 'm' is stored as map of STRING to LONG and declared as map of INT to LONG"
    )

"""Restoring into another parallelism and into another program."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidegate.checkpoint.assign import (
    ProgramOperator,
    assign_keyed,
    assign_round_robin,
    assign_watermarks,
    match_operators,
)
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState, SubtaskState
from tidegate.common.errors import RestoreError
from tidegate.state.key_groups import range_for
from tidegate.state.refs import StateFile, StateSchema, schema_mismatch


def operator_state(parallelism: int, maximum: int, files: int = 2, name: str = "op", **fields: Any) -> OperatorState:
    keyed = []
    for subtask in range(parallelism):
        groups = range_for(subtask, parallelism, maximum)
        refs = [StateFile(f"shared/{name}-{subtask}-{n}", 1, "", f"{n}", groups) for n in range(files)]
        keyed.append(SubtaskState(groups, refs))
    return OperatorState(
        uid_hash=name, name=name, parallelism=parallelism, max_parallelism=maximum, keyed=keyed, **fields
    )


def content(subtasks: list[SubtaskState]) -> dict[int, list[str]]:
    """Which files each key group is read from, in order."""
    groups: dict[int, list[str]] = {}
    for subtask in subtasks:
        for file in subtask.files:
            for group in range(file.groups.first, file.groups.last + 1):
                assert group in subtask.groups
                groups.setdefault(group, []).append(file.path)
    return groups


@given(st.integers(1, 200), st.data())
def test_every_group_is_read_once_from_its_files_in_order(maximum: int, data: st.DataObject) -> None:
    old = data.draw(st.integers(1, maximum))
    first = data.draw(st.integers(1, maximum))
    second = data.draw(st.integers(1, maximum))
    state = operator_state(old, maximum)
    rescaled = assign_keyed(state, first)
    assert content(rescaled) == content(state.keyed)
    # A rescale of a rescale, as after two restores without a new segment in between.
    again = OperatorState(uid_hash="x", name="x", parallelism=first, max_parallelism=maximum, keyed=rescaled)
    assert content(assign_keyed(again, second)) == content(state.keyed)
    assert [subtask.groups for subtask in rescaled] == [range_for(n, first, maximum) for n in range(first)]


def test_the_same_parallelism_is_the_same_list() -> None:
    state = operator_state(3, 128)
    assert assign_keyed(state, 3) == state.keyed


def test_files_of_another_directory_say_so() -> None:
    assigned = assign_keyed(operator_state(1, 128), 2, root="s3://old/job")
    assert {file.root for subtask in assigned for file in subtask.files} == {"s3://old/job"}


def test_an_operator_without_state_starts_empty() -> None:
    state = OperatorState(uid_hash="x", name="x", parallelism=1, max_parallelism=128)
    assert assign_keyed(state, 2) == [SubtaskState(range_for(0, 2, 128)), SubtaskState(range_for(1, 2, 128))]


def test_round_robin() -> None:
    assert assign_round_robin(["a", "b", "c"], 2) == [["a", "c"], ["b"]]
    assert assign_round_robin(["a"], 3) == [["a"], [], []]


def test_watermarks() -> None:
    assert assign_watermarks([5, 9], 2) == [5, 9]
    assert assign_watermarks([5, 9], 3) == [5, 5, 5]
    assert assign_watermarks([], 3) == []


# -- matching --


def metadata_of(*operators: OperatorState) -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint_id=1, job_id="j", job_name="n", token=1, trigger_ms=0, complete_ms=0, round=1,
        operators=list(operators),
    )  # fmt: skip


def test_matching_operators_and_new_ones() -> None:
    state = operator_state(1, 128, name="totals")
    operators = [ProgramOperator("new", "new", 1, 128), ProgramOperator("totals", "totals", 4, 128)]
    assert match_operators(metadata_of(state), operators, where="chk-1") == {"totals": state}


def test_removed_operator_without_state_is_no_loss() -> None:
    empty = OperatorState(uid_hash="map", name="map", parallelism=1, max_parallelism=128, watermarks=[3])
    assert match_operators(metadata_of(empty), [], where="chk-1") == {}


def test_all_mismatches_are_reported_together() -> None:
    total = StateSchema("total", "value", "LONG")
    metadata = metadata_of(
        operator_state(1, 128, name="totals", schemas=[total, StateSchema("last", "value", "STRING")]),
        operator_state(1, 128, name="gone", uid="gone-uid", schemas=[total]),
        OperatorState(uid_hash="out", name="out", parallelism=1, max_parallelism=1, committables=[b"1", b"2"]),
        OperatorState(uid_hash="in", name="in", parallelism=1, max_parallelism=1, source=[1]),
        operator_state(1, 128, name="wide"),
    )
    operators = [
        ProgramOperator("totals", "totals", 1, 128, schemas=(StateSchema("total", "list", "LONG"),)),
        ProgramOperator("wide", "wide", 1, 256),
        ProgramOperator("in", "in", 1, 1),
    ]
    with pytest.raises(RestoreError) as caught:
        match_operators(metadata, operators, where="/job/chk-1")
    found = str(caught.value.found)
    assert "'totals' (uid totals): state 'total' is stored as value of LONG and declared as list of LONG" in found
    assert "'wide' (uid wide) is stored with maximum parallelism 128 and now has 256" in found
    assert "'in' (uid in) is stored as a source and is none now" in found
    assert "operator 'gone' (uid gone-uid; states: total) is not in the program" in found
    assert "operator 'out' (uid out; 2 outputs not yet committed) is not in the program" in found
    assert found.count("\n    - ") == 5
    assert caught.value.where == "/job/chk-1"
    assert "ignore-unclaimed-state" in str(caught.value.cure)


def test_dropping_state_can_be_allowed_changing_types_cannot() -> None:
    metadata = metadata_of(
        operator_state(1, 128, name="gone"),
        operator_state(1, 128, name="totals", schemas=[StateSchema("total", "value", "LONG")]),
    )
    same = ProgramOperator("totals", "totals", 1, 128)
    matched = match_operators(metadata, [same], where="chk-1", allow_non_restored_state=True)
    assert set(matched) == {"totals"}
    changed = ProgramOperator("totals", "totals", 1, 128, schemas=(StateSchema("total", "value", "STRING"),))
    with pytest.raises(RestoreError, match="declared as value of STRING"):
        match_operators(metadata, [changed], where="chk-1", allow_non_restored_state=True)


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

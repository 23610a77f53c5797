"""The history of checkpoints: what is measured, that it stays bounded, that it outlives the driver."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.base.files import Files
from tidegate.checkpoint.checkpoint import Checkpoint
from tidegate.checkpoint.history import (
    STEPS,
    CheckpointHistory,
    CheckpointStatus,
    HistoryEntry,
    OperatorFigures,
    entry_of,
    read_history,
    sizes_of,
)
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.snapshot import KEYED, KeyedPart, OperatorSnapshot

GROUPS = KeyGroupRange(0, 127)


def entry(number: int, **figures: Any) -> HistoryEntry:
    return HistoryEntry(
        checkpoint_id=number, token=1, kind="checkpoint", status=CheckpointStatus.COMPLETED, trigger_ms=1, end_ms=2,
        duration_ms=1.5, **figures,
    )  # fmt: skip


def operators(count: int) -> dict[str, OperatorFigures]:
    return {f"uid-{n}": OperatorFigures(name=f"operator {n}", size=1_000_000, snapshot_ms=123.4) for n in range(count)}


# -- bounded --


def test_operators_of_old_entries_go_and_their_sums_stay(files: Files) -> None:
    history = CheckpointHistory(files)
    for number in range(1, 31):
        history.add(entry(number, size=number, operators=operators(100)))
    kept = read_history(files)
    assert [e.checkpoint_id for e in kept] == list(range(1, 31))
    assert [len(e.operators) for e in kept] == [0] * 20 + [100] * 10
    assert [e.size for e in kept] == list(range(1, 31))


def test_the_file_is_bounded_whatever_the_job(files: Files) -> None:
    history = CheckpointHistory(files)
    for number in range(1, 301):
        history.remember(entry(number, operators=operators(40), message="x" * 100_000, reason="DECLINED"))
    history.store()
    assert len(read_history(files)) == 200
    assert len(files.read_bytes("history.json")) < 1_000_000
    assert read_history(files)[-1].message.endswith("xxx ...")


# -- what comes later --


def test_what_is_known_later_is_written_with_the_next_entry(files: Files) -> None:
    history = CheckpointHistory(files)
    history.add(entry(1, steps_ms={"run": 3.0}))
    history.amend(entry(1), steps_ms={"run": 3.0, "subsume": 1.0})
    assert history.amend(entry(7), steps_ms={"run": 2.0}).steps_ms == {"run": 2.0}, "not in the history any more"
    assert not history.unstored
    assert read_history(files)[0].steps_ms == {"run": 3.0}
    history.add(entry(2))
    assert read_history(files)[0].steps_ms == {"run": 3.0, "subsume": 1.0}
    assert [e.checkpoint_id for e in read_history(files)] == [1, 2]


def test_at_the_end_what_is_known_later_is_written_too(files: Files) -> None:
    history = CheckpointHistory(files)
    history.add(entry(1))
    history.amend(entry(1), steps_ms={"subsume": 1.0})
    history.store()
    assert read_history(files)[0].steps_ms == {"subsume": 1.0}


# -- figures --


def state(uid: str, *files: tuple[str, int]) -> OperatorState:
    refs = tuple(StateFile(path, size, "hash", "v", GROUPS) for path, size in files)
    snapshot = OperatorSnapshot({KEYED: KeyedPart(GROUPS, refs)})
    return OperatorState(uid_hash=uid, name=uid.upper(), parallelism=1, max_parallelism=128, subtasks=[snapshot])


def metadata(*states: OperatorState) -> CheckpointMetadata:
    return CheckpointMetadata(
        checkpoint_id=4, job_id="job", job_name="job", token=2, trigger_ms=10, complete_ms=25, round=9,
        operators=list(states),
    )  # fmt: skip


def test_bytes_in_all_and_new_ones() -> None:
    cut = metadata(state("a", ("1", 100), ("2", 10)), state("b", ("3", 7)))
    sizes = sizes_of(cut, 50, {"1", "3"})
    assert (sizes.size, sizes.incremental) == (167, 60)
    assert sizes.operators == {"a": ("A", 110, 10), "b": ("B", 7, 0)}


def test_a_file_that_two_subtasks_share_counts_once() -> None:
    shared = state("a", ("1", 100))
    both = OperatorState(
        uid_hash="a", name="A", parallelism=2, max_parallelism=128, subtasks=[*shared.subtasks, *shared.subtasks]
    )
    assert sizes_of(metadata(both), 0, ()).size == 100


def test_figures_of_a_checkpoint_step_by_step() -> None:
    expected = frozenset({("a", 0), ("a", 1), ("b", 0)})
    figures = Checkpoint(4, token=2, trigger_ms=10, began=100, deadline=1000, expected=expected)
    figures.passed("trigger", 102)
    for subtask, align_ms in enumerate((3.0, 5.0)):
        figures.acknowledge("a", subtask, OperatorFigures(name="A", run_ms=20, align_ms=align_ms, in_flight_records=4))
    figures.acknowledge("b", 0, OperatorFigures(name="B", snapshot_ms=7))
    figures.ran(30, {"a": 12})
    figures.measure_from(140)
    figures.measured(sizes_of(metadata(state("b", ("1", 100))), 1, ()))
    for step, at in (("complete", 150), ("commit", 151.23), ("subsume", 155)):
        figures.passed(step, at)
    assert tuple(figures.steps_ms) == STEPS
    assert list(figures.steps_ms.values()) == [2, 30, 5, 7, 10, 1.2, 3.8]
    assert figures.operators["a"] == OperatorFigures(name="A", run_ms=20, align_ms=5, in_flight_records=8, behind=12)
    assert figures.operators["b"] == OperatorFigures(name="B", snapshot_ms=7, size=100, incremental=100)
    entered = figures.enter(155, 70)
    assert (entered.behind, entered.in_flight_records, entered.size) == (12, 8, 101)
    assert (entered.duration_ms, entered.end_ms, entered.steps_ms) == (55, 70, figures.steps_ms)


@pytest.mark.parametrize("behind", [{}, {"a": 0}, {"a": 3, "b": 4}])
def test_nobody_knows_is_not_nothing_behind(behind: dict[str, int]) -> None:
    figures = Checkpoint(4, token=2, trigger_ms=10, began=100, deadline=1000)
    figures.ran(30, behind)
    assert figures.behind == (sum(behind.values()) if behind else None)


def test_an_entry_from_metadata_alone() -> None:
    made = entry_of(metadata(state("a", ("1", 100)), state("b")), 50)
    assert (made.checkpoint_id, made.trigger_ms, made.end_ms, made.duration_ms) == (4, 10, 25, 15)
    assert (made.size, made.round, made.operators) == (150, 9, {"a": OperatorFigures(name="A", size=100)})

"""What a restored job starts with when its parallelism has changed, or when nothing but a timer waits."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.simulation.scenario import Place, Scenario
from tests.simulation.simulation import Simulation, simulate
from tests.unit.simulation.simulated_programs import KeyedCount, ProcessingTimers, source_of
from tidegate.graph.plan import build
from tidegate.graph.transformation import Program
from tidegate.operators.contracts.source import SourcePlan
from tidegate.operators.flow.rows import Ack, Generator, RoundContext, TaskPlan
from tidegate.runtime import progress as progress_module
from tidegate.runtime.progress import Progress
from tidegate.state.refs import KeyGroupRange, StateFile
from tidegate.state.snapshot import KEYED, SPLITS, KeyedPart, ListPart, OperatorSnapshot, Redistribution
from tidegate.testing.simulation.driver import Fault, Kind

CONTEXT = RoundContext(round=1, version="v", checkpoint_id=None, now_ms=0)


def progress_of(scenario: Scenario, parallelism: int) -> Progress:
    program = Program("p", tuple(scenario.transformations(Place("/nowhere"))), {})
    return Progress(build(program, parallelism, 16, {}))


def reading(progress: Progress, splits: list[dict[str, Generator]]) -> Progress:
    """With these splits in the hands of the source's subtasks."""
    parts = [ListPart.of(Redistribution.EVEN_SPLIT, [(s, *g) for s, g in held.items()]) for held in splits]
    return replace(progress, snapshots={(0, n): OperatorSnapshot({SPLITS: part}) for n, part in enumerate(parts)})


def splits_of(task: TaskPlan) -> dict[str, Generator]:
    rows = task.snapshots[0].values(SPLITS) if 0 in task.snapshots else []
    return {split: Generator(*state) for split, *state in rows}


def test_the_watermark_generator_of_a_split_goes_where_the_split_is_read() -> None:
    """Splits 0 to 2 at parallelism 3, then 2, then 3 again: what stays behind would hold back event time for ever."""
    scenario = KeyedCount()
    scenario.source = source_of("s", splits=3, records=4, limit=3)
    source = scenario.source.create_enumerator(3, None)
    restored = reading(progress_of(scenario, 3), [{str(split): Generator(split * 10, 0)} for split in range(3)])
    for parallelism in (2, 3):
        state = restored.operator_states({0: source.snapshot()})[0]
        restored = Progress.restored(progress_of(scenario, parallelism).graph, {state.uid_hash: state})
        plan = scenario.source.create_enumerator(parallelism, source.snapshot()).plan(3, 0)
        tasks = restored.plan(CONTEXT, {0: plan}).tasks[0]
        held = {split: generator for task in tasks for split, generator in splits_of(task).items()}
        assert held == {str(split): Generator(split * 10, 0) for split in range(3)}
        for task in tasks:
            assert set(splits_of(task)) == {interval.split for interval in task.intervals}


def test_a_split_that_is_not_read_now_keeps_its_generator() -> None:
    progress = reading(progress_of(KeyedCount(), 2), [{"0": Generator(5, 0)}, {"1": Generator(7, 0)}])
    tasks = progress.plan(CONTEXT, {0: SourcePlan()}).tasks[0]
    assert [splits_of(task) for task in tasks] == [{"0": Generator(5, 0)}, {"1": Generator(7, 0)}]


def test_restored_state_is_looked_at_in_a_first_round_for_timers() -> None:
    """Which timers wait in state files nobody knows before; without input or a checkpoint no round would tell."""
    progress = progress_of(ProcessingTimers(), 1)
    groups = KeyGroupRange(0, 15)
    held = OperatorSnapshot({KEYED: KeyedPart(groups, (StateFile("shared/x", 1, "", "v", groups),))})
    progress = replace(progress, snapshots={(1, 0): held})
    state = next(s for s in progress.operator_states({}) if s.uid == "delayed")
    assert progress.next_wake_up_ms is None
    restored = Progress.restored(progress.graph, {state.uid_hash: state})
    assert restored.next_wake_up_ms == 0


def test_timers_fire_soon_after_a_restore(root: str) -> None:
    """The next checkpoint is hours away and the source pauses: timers that are due must not wait for either."""
    simulation = Simulation(ProcessingTimers(), root, 5)
    assert simulation.live([Fault(0, "C7.subsumed", 2, Kind.CRASH)]).crashed
    simulation.settings["execution.checkpointing.interval"] = 10_000_000
    life = simulation.new_life()
    started = simulation.clock.now_ms()
    times = []
    run = life.engine.run
    life.engine.run = lambda plan: times.append(simulation.clock.now_ms() - started) or run(plan)
    simulation.run(life)
    assert life.finished
    assert times[0] == 0


@pytest.mark.parametrize("parallelism", [(3, 1), (3, 2, 3, 1), (1, 3)])
def test_event_time_does_not_go_back_after_rescales(parallelism: tuple[int, ...], root: str) -> None:
    """With two splits the third subtask of the source is idle: its watermark, of nothing, must not count. The program
    itself notices when event time falls."""
    crashes = [Fault(life, "C7.subsumed", 1, Kind.CRASH) for life in range(len(parallelism) - 1)]
    simulation = simulate(KeyedCount(), root, 5, crashes, parallelism=parallelism)
    assert simulation.lives[0].crashed


def test_task_learns_which_files_merges_have_removed_from_its_list(monkeypatch: pytest.MonkeyPatch) -> None:
    """So a worker that holds the contents of one of them knows that it was accepted."""
    monkeypatch.setattr(progress_module, "REPLACED_PATHS", 10)
    progress = progress_of(KeyedCount(), 1)
    chain = next(c for c in progress.graph.chains if c.head.operator.keyed is not None)
    head = chain.head.operator.id
    groups = KeyGroupRange(0, 15)
    known: list[str] = []
    for round in range(40):
        plan = progress.plan(CONTEXT, {0: SourcePlan()})
        task = plan.tasks[chain.level][chain.offset]
        assert task.replaced.get(head, ()) == tuple(known[-10:])
        acks = [Ack(c.id, 0, f"t{round}") for c in progress.graph.chains]
        files = task.snapshots[head].files() if head in task.snapshots else []
        if head in task.compact:
            first, end = task.compact[head]
            known += [file.path for file in files[first:end]]
            files[first:end] = [StateFile(f"base-{round}", 80, "", files[end - 1].upto, groups, 8)]
        files.append(StateFile(f"seg-{round}", 10, "", f"v{round}", groups, 1))
        acks[chain.id].snapshots[head] = OperatorSnapshot({KEYED: KeyedPart(groups, tuple(files))})
        before, (progress, _) = progress, progress.accept(acks)
        assert head not in before.snapshots or f"seg-{round}" not in before.paths(), "it never changes"  # type: ignore[comparison-overlap]
    assert len(known) > 20
    assert not set(known) & progress.paths()

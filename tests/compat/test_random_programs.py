"""Random programs give on the simulated engine what a plain model says, however they are cut into rounds, subtasks and lives.

``make random-pyflink`` runs more of them on real PyFlink, against the same model.
"""

from __future__ import annotations

from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.compat.random_programs.generator import RandomProgram, generate
from tests.compat.random_programs.run import Difference, differences, results, summary
from tests.compat.random_programs.stage import STAGES
from tests.simulation.executor import Simulated
from tidegate.base.errors import JobFailedError
from tidegate.common import Encoder
from tidegate.datastream import MapFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink, RollingPolicy

MakeEnv = Any


@pytest.fixture
def make_env(simulated: Simulated) -> MakeEnv:
    """``make_env(parallelism, keys)``: on the simulated engine, with a schedule of the seed."""

    def make(parallelism: int, keys: dict[str, str] | None = None, seed: int = 1) -> StreamExecutionEnvironment:
        return simulated(seed=seed, **(keys or {})).set_parallelism(parallelism)

    return make


def check(program: RandomProgram, env: StreamExecutionEnvironment) -> None:
    wrong = differences(program, results([program], env))
    assert not wrong, wrong


@pytest.mark.parametrize("seed", range(100))
def test_a_program_gives_what_its_model_gives(seed: int, make_env: MakeEnv) -> None:
    check(generate(seed), make_env(seed % 3 + 1, seed=seed))


ROUNDS = {"one": "1000000", "many": "2"}


@pytest.mark.parametrize("seed", range(1000, 1012))
@pytest.mark.parametrize("parallelism", [1, 4])
@pytest.mark.parametrize("rounds", ROUNDS)
def test_rounds_subtasks_and_inlining_do_not_show(seed: int, parallelism: int, rounds: str, make_env: MakeEnv) -> None:
    inline = "true" if (seed + parallelism) % 2 else "false"
    keys = {
        "tidegate.round.max-records": ROUNDS[rounds],
        "tidegate.functions.inline": inline,
        "tidegate.chunk.records": str(seed % 3 + 1),
        "pipeline.object-reuse": "true" if seed % 5 == 0 else "false",
    }
    check(generate(seed), make_env(parallelism, keys, seed))


@pytest.mark.parametrize("seed", range(4000, 4012))
def test_batch_mode_does_not_show(seed: int, make_env: MakeEnv) -> None:
    check(generate(seed), make_env(seed % 4 + 1, {"execution.runtime-mode": "BATCH"}, seed))


# -- restarts and rescales: what is written to files, exactly once


class Fragile(MapFunction):
    """Fails when so many records have passed all of its instances, and then no more."""

    left = -1

    def map(self, value: Any) -> Any:
        if Fragile.left > 0:
            Fragile.left -= 1
            if Fragile.left == 0:
                raise RuntimeError("as planned")
        return value


def live(program: RandomProgram, env: StreamExecutionEnvironment, target: Path, fails_after: int) -> bool:
    """One driver of the job, with a failure after so many records (-1: none); whether it finished."""
    Fragile.left = fails_after
    streams = program.build(env, through=lambda stream: stream.map(Fragile(), output_type=program.around.record_type()))
    union = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    sink = FileSink.for_row_format(str(target), Encoder.simple_string_encoder())
    sink.with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
    union.sink_to(sink.build())
    try:
        env.execute("random")
    except JobFailedError as error:
        if "as planned" not in str(error.__cause__):
            raise
        return False
    return True


def written(target: Path) -> list[str]:
    files = [path for path in target.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return sorted(line for path in files for line in path.read_text().splitlines())


@pytest.mark.parametrize("seed", range(2000, 2012))
def test_restarts_do_not_show(seed: int, make_env: MakeEnv, tmp_path: Path) -> None:
    program = generate(seed)
    records = sum(len(source.records) for source in program.sources)
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.round.max-records": "3",
        "restart-strategy.type": "fixed-delay",
        "restart-strategy.fixed-delay.attempts": "3",
        "restart-strategy.fixed-delay.delay": "0 ms",
    }
    assert live(program, make_env(seed % 4 + 1, keys, seed), tmp_path / "out", max(1, records * 2 // 3))
    assert Fragile.left <= 0 or records == 0, "nothing failed"
    wrong = differences(program, written(tmp_path / "out"))
    assert not wrong, wrong


@pytest.mark.parametrize("seed", range(3000, 3012))
def test_rescales_do_not_show(seed: int, make_env: MakeEnv, tmp_path: Path) -> None:
    """Every life has another parallelism, and continues where the last one's checkpoint was."""
    program = generate(seed)
    records = sum(len(source.records) for source in program.sources)
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.round.max-records": "2",
        "tidegate.job-id": f"random-{seed}",
        "pipeline.max-parallelism": "16",
    }
    random = Random(seed)
    for parallelism in random.sample([1, 2, 3, 4], 3):
        if live(program, make_env(parallelism, keys, seed), tmp_path / "out", random.randint(1, records // 2 + 1)):
            break
    else:
        assert live(program, make_env(random.randint(1, 4), keys, seed), tmp_path / "out", -1)
    wrong = differences(program, written(tmp_path / "out"))
    assert not wrong, wrong


def test_a_difference_is_reported_with_its_program_and_how_to_see_it_again() -> None:
    program = generate(3)
    expected = program.expected()
    text = differences(program, ["3.7: 1 2 at 3", *expected[1:]])
    assert text.startswith("program 3, keys ")
    assert f"- {expected[0]} (x1)\n+ 3.7: 1 2 at 3 (x1)" in text
    assert text.endswith("python -m tests.compat.random_programs.run 3 3")
    assert differences(program, expected) == ""


def test_a_summary_names_what_is_new_apart_from_what_says_nothing() -> None:
    found = [Difference(7, "..."), Difference(9, "...", varies=True), Difference(11, "...")]
    lines = summary(0, 49, found, {37: "cannot run"}).splitlines()
    assert lines[0].endswith("2 differ from the model: 7, 11")
    assert lines[1:] == ["one result and then another: 9", "left out: 37, cannot run"]
    assert summary(0, 49, [], {}).endswith("0 differ from the model: none")


def test_programs_have_every_stage_and_some_output() -> None:
    programs = [generate(seed) for seed in range(100)]
    used = {type(step.stage) for program in programs for step in program.steps}
    assert used == {kind for kind in STAGES if kind.possible()}
    assert sum(bool(program.expected()) for program in programs) > 80

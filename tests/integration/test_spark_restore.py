"""Jobs that continue where an earlier one stopped: restores, rescales, restarts, lost local state. Exactly once, all of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.integration.fault_switch import FaultSwitch
from tests.integration.job_tools import (
    Count,
    FailOnce,
    RenamedFiles,
    checkpoints,
    committed_files,
    committed_lines,
    file_sink,
    hidden_files,
    history,
)
from tests.sources import At, Pause, ScriptedSource
from tests.waiting import eventually
from tidegate.base.errors import JobCancelledError, JobFailedError
from tidegate.common import Duration, JobClient, JobStatus, RestartStrategies, Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSource, StreamFormat
from tidegate.datastream.connectors.number_seq import NumberSequenceSource
from tidegate.datastream.state import ListStateDescriptor, MapStateDescriptor

NONE = WatermarkStrategy.no_watermarks()
RETAIN = {
    "execution.checkpointing.interval": "30 ms",
    "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
}
KEYS = range(12)


def cancel(job: JobClient) -> None:
    job.cancel()
    with pytest.raises(JobCancelledError):
        job.get_job_execution_result().result()


def expected(times: int) -> list[str]:
    return sorted(str((key, n)) for key in KEYS for n in range(1, times + 1))


def count_until(env: StreamExecutionEnvironment, out: Path, times: int, *, last: bool = False) -> None:
    """Every key ``times`` times since the first start. All of it is committed when this returns."""
    script = [key for _ in range(times) for key in KEYS]
    source = env.from_source(ScriptedSource(script, ends=last), NONE, "keys").uid("source")
    counts = source.key_by(lambda v: v, Types.INT()).process(Count()).uid("count")
    counts.sink_to(file_sink(out)).uid("sink")
    job = env.execute_async()
    if last:
        job.get_job_execution_result().result()
    else:
        eventually(lambda: len(committed_lines(out)) >= len(script))
        cancel(job)
    assert sorted(committed_lines(out)) == expected(times)
    assert hidden_files(out) == []


@pytest.fixture
def stopped(make_env: Any, tmp_path: Path) -> Path:
    """The directory of a job that has counted every key twice and was cancelled."""
    count_until(make_env({**RETAIN, "tidegate.job-id": "first"}), tmp_path / "out", 2)
    return tmp_path / "checkpoints" / "first"


@pytest.mark.parametrize("what", ["chk", "_metadata", "same job"])
def test_a_job_continues_from(make_env: Any, tmp_path: Path, stopped: Path, what: str) -> None:
    (number,) = checkpoints(stopped)
    paths = {"chk": f"chk-{number}", "_metadata": f"chk-{number}/_metadata"}
    keys: dict[str, Any] = dict(RETAIN)
    if what == "same job":
        keys["tidegate.job-id"] = "first"
    else:
        keys["execution.state-recovery.path"] = str(stopped / paths[what])
    count_until(make_env(keys), tmp_path / "out", 4, last=True)
    if what != "same job":
        assert checkpoints(stopped) == [number]  # a restored checkpoint of another job is not touched


def test_a_finished_job_that_is_started_again_does_nothing(make_env: Any, tmp_path: Path) -> None:
    keys = {**RETAIN, "tidegate.job-id": "once"}
    for _ in range(2):
        count_until(make_env(keys), tmp_path / "out", 2, last=True)


def test_a_new_job_without_a_path_starts_from_nothing(make_env: Any, tmp_path: Path, stopped: Path) -> None:
    count_until(make_env(RETAIN), tmp_path / "fresh", 1, last=True)


def test_a_restored_job_is_restored_again(make_env: Any, tmp_path: Path, stopped: Path) -> None:
    (number,) = checkpoints(stopped)
    path = str(stopped / f"chk-{number}")
    keys = {**RETAIN, "tidegate.job-id": "second", "execution.state-recovery.path": path}
    count_until(make_env(keys), tmp_path / "out", 3)
    shutil.rmtree(stopped)  # nothing of the first job is needed any more
    # The path still says where the first start came from; the job's own checkpoints are newer.
    count_until(make_env(keys), tmp_path / "out", 4, last=True)


class Everything(KeyedProcessFunction):
    """Keeps its records in list and map state, and rings for each of them: in event time, once."""

    def open(self, runtime_context: Any) -> None:
        self.seen = runtime_context.get_list_state(ListStateDescriptor("seen", Types.LONG()))
        self.texts = runtime_context.get_map_state(MapStateDescriptor("texts", Types.LONG(), Types.STRING()))

    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        self.seen.add(value[1])
        self.texts.put(value[1], f"v{value[1]}")
        ctx.timer_service().register_event_time_timer(value[1] * 1_000)
        yield "seen", value[0], list(self.seen.get()), sorted(self.texts.values())

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "ring", ctx.get_current_key(), timestamp, self.texts.get(timestamp // 1_000)
        self.texts.remove(timestamp // 1_000)


def test_rescaling_2_to_3_to_1_with_state_and_timers(make_env: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    keys = [f"key {n}" for n in range(10)]
    # Phase n brings record n of each key at time 10 n: the timers, at 1000 n, ring after the last phase only.
    script = [At(10 * phase, (key, phase)) for phase in (1, 2, 3) for key in keys]
    for phase, parallelism in ((1, 2), (2, 3), (3, 1)):
        env = make_env({**RETAIN, "tidegate.job-id": "rescaled"}, parallelism=parallelism)
        source = ScriptedSource(script[: len(keys) * phase], ends=phase == 3)
        stream = env.from_source(source, WatermarkStrategy.for_monotonous_timestamps(), "s").uid("source")
        stream.key_by(lambda v: v[0]).process(Everything()).uid("everything").sink_to(file_sink(out)).uid("sink")
        job = env.execute_async()
        if phase == 3:
            job.get_job_execution_result().result()
        else:
            eventually(lambda phase=phase: len(committed_lines(out)) >= len(keys) * phase)  # type: ignore[misc]
            cancel(job)
            assert sorted(committed_lines(out)) == sorted(seen(key, p) for key in keys for p in range(1, phase + 1))
    rings = [str(("ring", key, 1_000 * n, f"v{n}")) for key in keys for n in (1, 2, 3)]
    assert sorted(committed_lines(out)) == sorted([seen(key, p) for key in keys for p in (1, 2, 3)] + rings)


def seen(key: str, phase: int) -> str:
    numbers = list(range(1, phase + 1))
    return str(("seen", key, numbers, [f"v{n}" for n in numbers]))


class RingLater(KeyedProcessFunction):
    def process_element(self, value: Any, ctx: KeyedProcessFunction.Context) -> Any:
        service = ctx.timer_service()
        service.register_processing_time_timer(service.current_processing_time() + 800)
        yield "set", value

    def on_timer(self, timestamp: int, ctx: KeyedProcessFunction.OnTimerContext) -> Any:
        yield "rang", ctx.get_current_key()


def test_processing_timers_of_a_stopped_job_ring_in_the_next(make_env: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"

    def start(parallelism: int) -> JobClient:
        env = make_env({**RETAIN, "tidegate.job-id": "timers"}, parallelism=parallelism)
        source = env.from_source(ScriptedSource(["a", "b", "c"], ends=False), NONE, "s").uid("source")
        source.key_by(lambda v: v).process(RingLater()).uid("ring").sink_to(file_sink(out)).uid("sink")
        return env.execute_async()

    job = start(2)
    eventually(lambda: sum("set" in line for line in committed_lines(out)) == 3)
    cancel(job)
    before = committed_lines(out)
    job = start(3)
    # No record comes any more: the job knows from its checkpoint's state when it has to wake up.
    eventually(lambda: sum("rang" in line for line in committed_lines(out)) == 3)
    cancel(job)
    assert sorted(committed_lines(out)) == sorted(str((what, key)) for what in ("set", "rang") for key in "abc")
    assert len(before) >= 3


# -- local state


def test_local_stores_removed_between_rounds_are_rebuilt(make_env: Any, tmp_path: Path) -> None:
    source, out, local = tmp_path / "in", tmp_path / "out", tmp_path / "local"
    source.mkdir()

    def add_file(number: int) -> None:
        (tmp_path / "new").write_text("".join(f"{key}\n" for key in KEYS))
        (tmp_path / "new").rename(source / f"{number}.txt")

    env = make_env({"execution.checkpointing.interval": "30 ms"})
    builder = FileSource.for_record_stream_format(StreamFormat.text_line_format(), str(source))
    lines = env.from_source(builder.monitor_continuously(Duration.of_millis(10)).build(), NONE, "files")
    lines.map(int).key_by(lambda v: v).process(Count()).sink_to(file_sink(out))
    job = env.execute_async()
    for times in (1, 2, 3):
        shutil.rmtree(local, ignore_errors=True)
        add_file(times)
        eventually(lambda times=times: len(committed_lines(out)) >= times * len(KEYS))  # type: ignore[misc]
        assert list(local.rglob("data.mdb"))
    cancel(job)
    assert sorted(committed_lines(out)) == expected(3)


# -- restarts


FIXED = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": "10 ms"}
STRATEGIES = {
    "fixed": RestartStrategies.fixed_delay_restart(2, 10),
    "rate": RestartStrategies.failure_rate_restart(2, 600_000, 10),
    "exponential": RestartStrategies.exponential_delay_restart(10, 50),
}


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_a_function_that_fails_twice_and_output_exactly_once(make_env: Any, tmp_path: Path, strategy: str) -> None:
    env = make_env({"execution.checkpointing.interval": "30 ms", "tidegate.round.max-records": 100})
    env.set_restart_strategy(STRATEGIES[strategy])
    numbers = env.from_source(NumberSequenceSource(1, 600), NONE, "n").map(FailOnce(tmp_path / "failed", 140, 550))
    numbers.sink_to(file_sink(tmp_path / "files"))
    (tmp_path / "transactions").mkdir()
    numbers.key_by(lambda v: v % 5).process(Count()).add_sink(RenamedFiles(tmp_path / "transactions"))
    env.execute()
    assert {path.name for path in (tmp_path / "failed").iterdir()} == {"140-0", "550-0"}
    assert sorted(map(int, committed_lines(tmp_path / "files"))) == list(range(1, 601))
    transactions = committed_lines(tmp_path / "transactions" / "committed")
    assert sorted(transactions) == sorted(str((key, n)) for key in range(5) for n in range(1, 121))
    assert hidden_files(tmp_path / "files") == []
    assert list((tmp_path / "transactions" / "open").iterdir()) == []


def test_a_restart_goes_back_to_the_checkpoint_and_not_to_the_start(make_env: Any, tmp_path: Path) -> None:
    env = make_env({"execution.checkpointing.interval": "30 ms", "tidegate.job-id": "back", **FIXED})
    script = [1, 2, 3, Pause(1), 4]
    source = env.from_source(ScriptedSource(script, ends=False), NONE, "s")
    source.map(FailOnce(tmp_path / "failed", 4)).sink_to(file_sink(tmp_path / "out"))
    job = env.execute_async()
    rounds: list[Any] = []
    job.add_round_listener(rounds.append)
    eventually(lambda: len(committed_lines(tmp_path / "out")) == 4)
    assert job.get_job_status().result() is JobStatus.RUNNING
    cancel(job)
    assert sorted(committed_lines(tmp_path / "out")) == ["1", "2", "3", "4"]
    assert sum(r.records_in for r in rounds) <= 4 + 3  # the first three were read again only if no checkpoint had them
    assert [entry.reason for entry in history(tmp_path / "checkpoints" / "back") if entry.reason] in (
        [],
        ["ROUND_FAILED"],
    )


def test_a_job_that_fails_more_often_than_allowed_fails_and_can_be_started_again(make_env: Any, tmp_path: Path) -> None:
    keys = {"execution.checkpointing.interval": "30 ms", "tidegate.job-id": "unlucky", **FIXED}

    def run() -> None:
        env = make_env({**keys, "restart-strategy.fixed-delay.attempts": 2})
        env.from_collection([1, 2]).map(FailOnce(tmp_path / "failed", 2, times=3)).sink_to(file_sink(tmp_path / "out"))
        env.execute()

    with pytest.raises(JobFailedError, match="scripted failure at 2"):
        run()
    assert len(list((tmp_path / "failed").iterdir())) == 3
    assert committed_files(tmp_path / "out") == []
    run()
    assert sorted(committed_lines(tmp_path / "out")) == ["1", "2"]
    assert hidden_files(tmp_path / "out") == []  # what the last failed attempt had prepared is gone


def test_without_checkpoints_a_failure_is_final(make_env: Any, tmp_path: Path) -> None:
    env = make_env()
    env.from_collection([1]).map(FailOnce(tmp_path / "failed", 1)).sink_to(file_sink(tmp_path / "out"))
    with pytest.raises(JobFailedError, match="scripted failure at 1"):
        env.execute()
    assert committed_files(tmp_path / "out") == hidden_files(tmp_path / "out") == []


def test_storage_that_cannot_be_read_for_a_while(make_env: Any, tmp_path: Path, fault_switch: FaultSwitch) -> None:
    attempts = {"restart-strategy.fixed-delay.attempts": 1_000}
    env = make_env(
        {"execution.checkpointing.interval": "30 ms", "tidegate.round.max-records": 100, **FIXED, **attempts}
    )
    numbers = env.from_source(NumberSequenceSource(1, 1_500), NONE, "n").key_by(lambda v: v % 5)
    numbers.process(Count()).sink_to(file_sink(tmp_path / "out"))
    job = env.execute_async()
    statuses: set[JobStatus] = set()
    fault_switch.on("storage.read", "EIO", "/shared/")
    eventually(lambda: statuses.add(job.get_job_status().result()) or JobStatus.RESTARTING in statuses)
    fault_switch.off()
    job.get_job_execution_result().result()
    found = sorted(committed_lines(tmp_path / "out"))
    assert found == sorted(str((key, n)) for key in range(5) for n in range(1, 301))

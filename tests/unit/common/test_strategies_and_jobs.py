"""Watermark and restart strategies, execution config, job client and futures, serialization schemas."""

from __future__ import annotations

import asyncio
import pickle
import threading
from concurrent.futures import Future
from datetime import timedelta
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError, ConfigurationError, JobFailedError, ProgramError
from tidegate.common import (
    ByteArraySchema,
    CompletableFuture,
    Configuration,
    Duration,
    Encoder,
    ExecutionConfig,
    JobClient,
    JobExecutionResult,
    JobID,
    JobStatus,
    RestartStrategies,
    Row,
    SimpleStringSchema,
    TimestampAssigner,
    WatermarkStrategy,
)
from tidegate.common.configuration import effective


class SecondField(TimestampAssigner):
    def extract_timestamp(self, value: tuple[str, int], record_timestamp: int) -> int:
        return value[1]


def test_strategies_are_immutable_values() -> None:
    base = WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(5))
    full = base.with_timestamp_assigner(SecondField()).with_idleness(Duration.of_minutes(1))
    assert (base.kind, base.out_of_orderness_ms, base.idleness_ms, base.timestamp_assigner) == (
        "bounded",
        5000,
        None,
        None,
    )
    assert full.idleness_ms == 60_000
    assert full.timestamp_assigner.extract_timestamp(("a", 7), 0) == 7  # type: ignore[union-attr]
    assert WatermarkStrategy.for_monotonous_timestamps().kind == "monotonous"
    assert WatermarkStrategy.no_watermarks().kind == "none"
    assert pickle.loads(pickle.dumps(full)).out_of_orderness_ms == 5000


def test_alignment_is_kept() -> None:
    aligned = WatermarkStrategy.no_watermarks().with_watermark_alignment("g", Duration.of_seconds(20))
    assert (aligned.alignment_group, aligned.alignment_drift_ms, aligned.alignment_interval_ms) == ("g", 20_000, 1_000)


def test_strategy_mistakes() -> None:
    strategy = WatermarkStrategy.no_watermarks()
    with pytest.raises(ArgumentTypeError, match="a TimestampAssigner or a callable"):
        strategy.with_timestamp_assigner(5)  # type: ignore[arg-type]
    with pytest.raises(ArgumentTypeError, match="for_bounded_out_of_orderness takes a Duration"):
        WatermarkStrategy.for_bounded_out_of_orderness(5)  # type: ignore[arg-type]
    with pytest.raises(ProgramError, match="with_idleness takes at least 1 ms"):
        strategy.with_idleness(Duration.of_millis(0))
    assert strategy.with_timestamp_assigner(lambda value, timestamp: value).timestamp_assigner is not None


@pytest.mark.parametrize(
    ("strategy", "description", "settings"),
    [
        (RestartStrategies.no_restart(), "Restart deactivated.", {"restart-strategy.type": "none"}),
        (
            RestartStrategies.fixed_delay_restart(3, 1000),
            "Restart with fixed delay (1000 ms). #3 restart attempts.",
            {
                "restart-strategy.type": "fixed-delay",
                "restart-strategy.fixed-delay.attempts": 3,
                "restart-strategy.fixed-delay.delay": 1000,
            },
        ),
        (
            RestartStrategies.failure_rate_restart(2, timedelta(minutes=1), Duration.of_seconds(1)),
            "Failure rate restart with maximum of 2 failures within interval 60000 ms and fixed delay 1000 ms.",
            {
                "restart-strategy.type": "failure-rate",
                "restart-strategy.failure-rate.max-failures-per-interval": 2,
                "restart-strategy.failure-rate.failure-rate-interval": 60_000,
                "restart-strategy.failure-rate.delay": 1000,
            },
        ),
        (
            RestartStrategies.exponential_delay_restart(Duration.of_millis(10), Duration.of_seconds(1), 2.0),
            "Restart with exponential delay: starting at 10 ms, increasing by 2.0, with maximum 1000 ms."
            " Delay resets after 3600000 ms with jitter 0.1",
            {
                "restart-strategy.type": "exponential-delay",
                "restart-strategy.exponential-delay.initial-backoff": 10,
                "restart-strategy.exponential-delay.backoff-multiplier": 2.0,
            },
        ),
    ],
)
def test_restart_strategies_are_settings(strategy: object, description: str, settings: dict[str, object]) -> None:
    configuration = Configuration()
    for option, value in strategy.settings().items():  # type: ignore[attr-defined]
        configuration.write(option, value)
    assert strategy.get_description() == description  # type: ignore[attr-defined]
    assert effective(configuration).items() >= settings.items()


def test_execution_config_is_a_view_of_the_configuration() -> None:
    configuration = Configuration.from_dict({"parallelism.default": "3"})
    config = ExecutionConfig(configuration)
    assert config.get_parallelism() == 3
    config.set_max_parallelism(64).set_global_job_parameters({"region": "north"}).enable_object_reuse()
    config.disable_auto_generated_uids()
    assert effective(configuration)["pipeline.max-parallelism"] == 64
    assert config.get_global_job_parameters() == {"region": "north"}
    assert config.is_object_reuse_enabled()
    assert not config.has_auto_generated_uids_enabled()
    assert ExecutionConfig().get_max_parallelism() == -1
    assert ExecutionConfig().get_auto_watermark_interval() == 200
    with pytest.raises(ConfigurationError, match="must lie between 1 and 32,768"):
        config.set_max_parallelism(0)
    with pytest.raises(ArgumentTypeError, match="set_parallelism takes a whole number"):
        config.set_parallelism("2")  # type: ignore[arg-type]


class EndedJob:
    job_id = "0" * 32

    def __init__(self, error: Exception | None = None) -> None:
        self.error, self.cancelled = error, False

    def status(self) -> JobStatus:
        return JobStatus.FAILED if self.error else JobStatus.FINISHED

    def cancel(self) -> None:
        self.cancelled = True

    def suspend(self) -> None:
        raise NotImplementedError

    def trigger_savepoint(self, directory: str | None = None) -> Future[str]:
        raise NotImplementedError

    def stop_with_savepoint(self, directory: str | None = None, *, drain: bool = False) -> Future[str]:
        raise NotImplementedError

    def html(self) -> str:
        raise NotImplementedError

    def add_listener(self, listener: Any) -> None:
        raise NotImplementedError

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        if self.error:
            raise self.error
        return JobExecutionResult(JobID(self.job_id), 12, {"records": 5})


def test_job_client_answers_with_futures() -> None:
    job = EndedJob()
    client = JobClient(job)
    assert str(client.get_job_id()) == "0" * 32
    assert client.get_job_status().result() is JobStatus.FINISHED
    assert client.get_accumulators().result() == {"records": 5}
    result = client.get_job_execution_result()
    assert result is client.get_job_execution_result()
    assert result.result().get_net_runtime() == 12
    assert result.result().get_accumulator_result("records") == 5
    assert result.exception() is None
    assert "Job Runtime: 12 ms" in str(result.result())
    client.cancel().result()
    assert job.cancelled


def test_the_error_of_a_failed_job_reaches_whoever_asks() -> None:
    future = JobClient(EndedJob(JobFailedError("The job failed"))).get_job_execution_result()
    assert isinstance(future.exception(), JobFailedError)
    with pytest.raises(JobFailedError, match="The job failed"):
        future.result()


def test_futures_wait_and_can_be_awaited() -> None:
    gate = threading.Event()
    future = CompletableFuture.of(lambda: gate.wait(30) and 7)
    assert not future.done()
    gate.set()
    assert future.result() == 7
    assert future.done()
    assert not future.cancelled()
    assert not future.cancel()

    async def wait() -> int:
        return await CompletableFuture.of(lambda: 8)

    assert asyncio.run(wait()) == 8


def test_terminal_states() -> None:
    assert [status.name for status in JobStatus if status.is_globally_terminal_state()] == [
        "FAILED",
        "CANCELED",
        "FINISHED",
    ]
    assert JobStatus.SUSPENDED.is_terminal_state()
    assert not JobStatus.RESTARTING.is_terminal_state()


def test_schemas() -> None:
    assert SimpleStringSchema("latin-1").serialize("ä") == b"\xe4"
    assert SimpleStringSchema().deserialize("ä".encode()) == "ä"
    assert ByteArraySchema().serialize(bytearray(b"x")) == b"x"
    assert ByteArraySchema().deserialize(b"x") == b"x"
    with pytest.raises(ArgumentTypeError, match="SimpleStringSchema takes a text"):
        SimpleStringSchema().serialize(5)
    with pytest.raises(ArgumentTypeError, match="ByteArraySchema takes bytes"):
        ByteArraySchema().serialize("x")
    with pytest.raises(ConfigurationError, match="character set is unknown"):
        SimpleStringSchema("klingon")


def test_the_line_encoder() -> None:
    encoder = Encoder.simple_string_encoder()
    assert encoder.encode(Row(1)) == b"<Row(1)>\n"
    assert encoder.encode_batch(["a", 2]) == b"a\n2\n"
    assert encoder.encode_batch([]) == b""
    assert pickle.loads(pickle.dumps(encoder)).encode("x") == b"x\n"

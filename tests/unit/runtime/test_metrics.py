"""Metrics: measured in subtasks, added up on the driver, shown in the view and to Prometheus."""

from __future__ import annotations

import contextlib
import http.client
import re
import socket
import urllib.request
from pathlib import Path
from typing import Any

import h11
import pytest

from tests.simulation.engine import Chances
from tests.simulation.executor import SimulatedExecutor, simulated_environment
from tidegate.base.errors import ConfigurationError, JobFailedError
from tidegate.common import Types, WatermarkStrategy
from tidegate.common.time import Time
from tidegate.connectors.values.ranges import NumberSequenceSource
from tidegate.control import serving
from tidegate.control.server import MetricsPort
from tidegate.datastream import (
    AsyncDataStream,
    AsyncFunction,
    KeyedProcessFunction,
    StreamExecutionEnvironment,
)
from tidegate.datastream.functions import MapFunction
from tidegate.operators.contracts.metrics import SubtaskMetricGroup, SubtaskMetrics
from tidegate.runtime import prometheus
from tidegate.runtime.prometheus import prometheus_text
from tidegate.runtime.view import JobView

MONOTONOUS = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(lambda value, before: value)


FAULTY = Chances(die=0.1, zombie=0.1, late=0.1, lose_store=0.1)


def environment(directory: Path, **options: Any) -> StreamExecutionEnvironment:
    keys = {
        "execution.checkpointing.interval": "10 ms",
        "tidegate.round.max-records": 30,
        "parallelism.default": 1,
        **options,
    }
    return simulated_environment(directory, seed=3, **keys)


class Measures(MapFunction):
    def open(self, runtime_context: Any) -> None:
        group = runtime_context.get_metrics_group()
        self.seen = group.counter("seen")
        self.odd = group.add_group("kinds").add_group("parity", "odd").counter("records")
        self.meter = group.meter("events", 5)
        self.sizes = group.distribution("sizes")
        self.last = 0
        group.gauge("last", lambda: self.last)

    def map(self, value: int) -> int:
        self.seen.inc()
        if value % 2:
            self.odd.inc(2)
            self.odd.dec()
        self.meter.mark_event()
        self.sizes.update(value)
        self.last = value
        return value


def measured(directory: Path, function: Any = None, **options: Any) -> JobView:
    env = environment(directory, **options)
    stream = env.from_source(NumberSequenceSource(0, 99), MONOTONOUS, "numbers", Types.LONG()).set_parallelism(1)
    list(stream.map(function or Measures()).name("measuring").execute_and_collect())
    return SimulatedExecutor.last.view()


def totals(view: JobView, name: str) -> float:
    return sum(metric.value for metric in view.metrics.values() if metric.full_name == name)


@pytest.mark.parametrize("chances", [None, FAULTY], ids=["simulated", "faulty"])
@pytest.mark.parametrize("limit", [1, 30, 1000])
@pytest.mark.parametrize("parallelism", [1, 3])
def test_counts_are_those_of_the_accepted_rounds(
    tmp_path: Path, chances: Chances | None, limit: int, parallelism: int
) -> None:
    """Attempts of tasks that died, and those that nobody waited for, count for nothing."""
    options: dict[str, Any] = {
        "chances": chances,
        "tidegate.round.max-records": limit,
        "parallelism.default": parallelism,
    }
    view = measured(tmp_path, **options)
    assert totals(view, "seen") == totals(view, "events") == 100
    assert totals(view, "kinds.records") == 50
    sizes = [metric for metric in view.metrics.values() if metric.name == "sizes"]
    assert sum(m.count or 0 for m in sizes) == 100 and sum(m.value for m in sizes) == sum(range(100))
    assert min(m.least for m in sizes if m.least is not None) == 0
    assert max(m.greatest for m in sizes if m.greatest is not None) == 99


def test_a_job_without_metrics_sends_none(tmp_path: Path) -> None:
    assert measured(tmp_path, lambda v: v).metrics == {}


def test_built_in_figures_of_operators(tmp_path: Path) -> None:
    env = environment(tmp_path)
    stream = env.from_source(NumberSequenceSource(0, 99), MONOTONOUS, "numbers", Types.LONG())
    list(stream.key_by(lambda v: v % 3).map(lambda v: v).name("mapped").execute_and_collect())
    shown = {o.name: o for o in SimulatedExecutor.last.view().operators}
    assert shown["mapped"].records_in == 100 and shown["mapped"].busy_seconds is not None
    assert shown["mapped"].watermark == (1 << 63) - 1


SAMPLE = re.compile(r'^[a-zA-Z_:][a-zA-Z0-9_:]*\{([a-zA-Z_][a-zA-Z0-9_]*="(\\.|[^"\\\n])*",?)*\} -?[0-9.e+-]+$')


def test_the_text_for_prometheus(tmp_path: Path) -> None:
    text = prometheus_text(measured(tmp_path))
    job = text.partition('job_id="')[2].partition('"')[0]
    of_job = f'job_id="{job}",job_name="Tidegate Streaming Job",operator="measuring"'
    assert f'tidegate_operator_seen{{{of_job},subtask="0"}} 100.0\n' in text
    assert f'tidegate_operator_kinds_records{{{of_job},parity="odd",subtask="0"}} 50.0\n' in text
    assert f'tidegate_operator_sizes_sum{{{of_job},subtask="0"}} 4950.0\n' in text
    assert "# TYPE tidegate_operator_records_in_total counter\n" in text
    assert "tidegate_checkpoint_id{" in text and "tidegate_rounds_total{" in text
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    assert all(SAMPLE.match(line) for line in lines), [line for line in lines if not SAMPLE.match(line)]
    names = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
    assert len(names) == len(set(names)), "a family of samples stands in one block"


class Quoting(MapFunction):
    def open(self, runtime_context: Any) -> None:
        runtime_context.get_metrics_group().add_group("kind", 'a "b"\\\n').counter("n").inc()

    def map(self, value: int) -> int:
        return value


def test_labels_are_escaped(tmp_path: Path) -> None:
    assert 'kind="a \\"b\\"\\\\\\n"' in prometheus_text(measured(tmp_path, Quoting()))


def test_prometheus_may_ask_while_the_job_runs(tmp_path: Path) -> None:
    env = environment(tmp_path, **{"metrics.reporter.prom.port": "0-0"})
    stream = env.from_source(NumberSequenceSource(0, 1 << 40), MONOTONOUS, "numbers", Types.LONG())
    collected: Any = stream.map(Measures()).execute_and_collect()
    with collected as values:
        next(values)
        master: Any = SimulatedExecutor.last._master
        port = master._prometheus.port
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=60) as answer:
            assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
            assert b"tidegate_operator_seen{" in answer.read()


def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    server = MetricsPort(range(1), lambda: SimulatedExecutor.last.view())
    try:
        with pytest.raises((JobFailedError, ConfigurationError), match="names no free port"):
            measured(tmp_path, **{"metrics.reporter.prom.port": server.port})
        free = MetricsPort(range(server.port, server.port + 50), lambda: SimulatedExecutor.last.view())
        assert free.port > server.port
        free.close()
    finally:
        server.close()


def test_metrics_port_answers_at_two_paths_and_closes_with_the_job(tmp_path: Path) -> None:
    measured(tmp_path)
    server = MetricsPort(range(1), lambda: SimulatedExecutor.last.view())
    statuses = {path: asked(server.port, path) for path in ("/", "/metrics", "/metrics?x=1", "/nothing")}
    assert statuses == {"/": 200, "/metrics": 200, "/metrics?x=1": 200, "/nothing": 404}
    server.close()
    with pytest.raises(ConnectionRefusedError):
        asked(server.port)


def asked(port: int, path: str = "/metrics", **headers: str) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", path, headers={name: value for name, value in headers.items() if value})
    status = connection.getresponse().status
    connection.close()
    return status


def test_prometheus_port_refuses_names_that_are_not_loopbacks_and_wants_the_token(tmp_path: Path) -> None:
    measured(tmp_path)
    (tmp_path / "token").write_text("s3cret\n")
    free = MetricsPort(range(1), lambda: SimulatedExecutor.last.view())
    closed = MetricsPort(range(1), lambda: SimulatedExecutor.last.view(), str(tmp_path / "token"))
    try:
        hosts = {
            "": 200,
            "localhost": 200,
            "LOCALHOST:19249": 200,
            "evil.example": 403,
            f"evil.example:{free.port}": 403,
        }
        hosts |= {"127.0.0.1.evil.example": 403, "localhost@evil.example": 403}
        assert {host: asked(free.port, Host=host) for host in hosts} == hosts
        tokens = {
            "": 401,
            "Bearer s3cret": 200,
            "bearer  s3cret ": 200,
            "Bearer wrong": 401,
            "Basic s3cret": 401,
            "s3cret": 401,
        }
        assert {token: asked(closed.port, Authorization=token) for token in tokens} == tokens
        assert asked(closed.port, Authorization="Bearer s3cret", Host="evil.example") == 403
    finally:
        free.close()
        closed.close()


def test_prometheus_port_answers_beside_idle_connections(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    measured(tmp_path)
    monkeypatch.setattr(serving, "LIMITS", {**serving.LIMITS, h11.IDLE: 0.2})
    server = MetricsPort(range(1), lambda: SimulatedExecutor.last.view())
    try:
        idle = [socket.create_connection(("127.0.0.1", server.port), timeout=60) for _ in range(200)]
        for each in idle:  # all are closed by the server: at once, or after a moment
            with contextlib.suppress(ConnectionResetError):
                assert each.recv(1) == b""
            each.close()
        assert asked(server.port) == 200
    finally:
        server.close()


@pytest.mark.parametrize("content", [None, " \n"])
def test_token_file_without_a_token_is_refused(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "token").write_text(content)
    with pytest.raises((JobFailedError, ConfigurationError), match=r"prom\.token-file' names no file with a token"):
        measured(
            tmp_path,
            **{"metrics.reporter.prom.port": "0-0", "metrics.reporter.prom.token-file": str(tmp_path / "token")},
        )


def test_a_port_that_cannot_be_is_refused(tmp_path: Path) -> None:
    for wrong in ("70000", "12-3", "many"):
        with pytest.raises(
            ConfigurationError, match=r"'metrics\.reporter\.prom\.port' must be a port or a range of ports"
        ):
            measured(tmp_path, **{"metrics.reporter.prom.port": wrong})


# -- functions that measure ------------------------------------------------------------------------------------------------


class BadGauge(MapFunction):
    def open(self, runtime_context: Any) -> None:
        group = runtime_context.get_metrics_group()
        group.gauge("raises", lambda: 1 // 0)
        group.gauge("text", lambda: "many")  # type: ignore[arg-type,return-value]
        group.gauge("good", lambda: 7)

    def map(self, value: int) -> int:
        return value


def test_a_gauge_that_cannot_be_asked_fails_no_job(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    view = measured(tmp_path, BadGauge())
    assert [(m.name, m.value) for m in view.metrics.values()] == [("good", 7)]
    assert "ZeroDivisionError" in caplog.text and "not a number" in caplog.text


@pytest.mark.parametrize(
    ("register", "message"),
    [
        (lambda group: (group.counter("n"), group.meter("n")), "a counter and a meter"),
        (lambda group: group.counter(""), "A metric must have a name"),
        (lambda group: group.gauge("n", 5), "A gauge must be a function without arguments"),
    ],
)
def test_metrics_that_cannot_be_are_refused(tmp_path: Path, register: Any, message: str) -> None:
    class Registers(MapFunction):
        def open(self, runtime_context: Any) -> None:
            register(runtime_context.get_metrics_group())

        def map(self, value: int) -> int:
            return value

    with pytest.raises(JobFailedError) as failed:
        measured(tmp_path, Registers())
    assert message in str(failed.value.__cause__)


def test_the_same_name_is_the_same_metric() -> None:
    metrics = SubtaskMetrics("operator")
    group = SubtaskMetricGroup(metrics)
    group.counter("n").inc()
    group.counter("n").inc(4)
    group.add_group("inside").counter("n").inc()
    assert group.counter("n").get_count() == 5
    assert sorted(change.value for change in metrics.changes()) == [1, 5]
    metrics.begin()
    assert metrics.changes() == [] and group.counter("n").get_count() == 5


class Timed(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.fired = runtime_context.get_metrics_group().counter("fired")

    def process_element(self, value: int, ctx: Any) -> None:
        ctx.timer_service().register_event_time_timer(value)

    def on_timer(self, timestamp: int, ctx: Any) -> None:
        self.fired.inc()


class Calls(AsyncFunction):
    def open(self, runtime_context: Any) -> None:
        self.calls = runtime_context.get_metrics_group().counter("calls")

    async def async_invoke(self, value: int) -> list[int]:
        self.calls.inc()
        return [value]


def test_timers_and_asynchronous_calls_count_too(tmp_path: Path) -> None:
    env = environment(tmp_path, **{"parallelism.default": 2})
    stream = env.from_source(NumberSequenceSource(0, 99), MONOTONOUS, "numbers", Types.LONG())
    stream = AsyncDataStream.unordered_wait(stream, Calls(), Time.seconds(10))
    list(stream.key_by(lambda v: v % 3).process(Timed()).execute_and_collect())
    assert totals(SimulatedExecutor.last.view(), "fired") == totals(SimulatedExecutor.last.view(), "calls") == 100


def test_the_rate_of_a_meter_forgets() -> None:
    from tidegate.operators.contracts.metrics import METER, Change
    from tidegate.operators.flow.rows import Ack
    from tidegate.runtime.statistics import JobMetrics

    metrics = JobMetrics()
    for second in range(10):
        metrics.add([Ack(0, 0, "t", metrics={1: [Change(METER, (), "m", 20, 5)]})], second * 1000)
    (shown,) = metrics.shown.values()
    assert (shown.value, shown.rate) == (200, 20.0)
    metrics.add([], 60_000)
    (shown,) = metrics.shown.values()
    assert (shown.value, shown.rate) == (200, 0.0)


def test_figures_of_subtasks_and_parts_of_rounds_are_metrics(tmp_path: Path) -> None:
    view = measured(tmp_path)
    text = prometheus_text(view)
    source = view.subtasks[0]
    labels = 'job_id="[^"]*",job_name="[^"]*",operator="numbers",operator_id="1",subtask="0"'
    for name, value in (
        ("records_in_total", source.records_in),
        ("bytes_out_total", source.bytes_out),
        ("busy_ratio", source.busy),
        ("idle_ratio", source.idle),
        ("state_bytes", 0),
    ):
        found = re.search(rf"^tidegate_subtask_{name}{{{labels}}} (\S+)$", text, re.MULTILINE)
        assert found is not None, name
        assert float(found[1]) == pytest.approx(value)
    assert re.search(r'^tidegate_subtask_lag{.*subtask="0",unit="records"} 0.0$', text, re.MULTILINE)
    for part in view.rounds[-1].parts:
        assert re.search(rf'^tidegate_round_part_seconds{{.*part="{part}"}} ', text, re.MULTILINE)


def test_subtasks_without_bound_are_no_metrics(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    view = measured(tmp_path)
    monkeypatch.setattr(prometheus, "MOST_SUBTASKS", 0)
    assert "tidegate_subtask_" not in prometheus_text(view)

"""What an OpenTelemetry collector gets of a job, over HTTP: a job on the simulated engine sends it to a server of the test."""

from __future__ import annotations

import gzip
import threading
from collections import defaultdict
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from tests.unit.control.flink.shown_jobs import start
from tests.waiting import eventually
from tidegate.base.errors import ConfigurationError
from tidegate.control.telemetry import TelemetryFace, named
from tidegate.runtime import settings
from tidegate.runtime.settings import Telemetry


class Collector:
    """Takes OTLP as a collector does, and decodes the messages."""

    def __init__(self) -> None:
        self.metrics: dict[str, list[Any]] = defaultdict(list)
        self.spans: list[Any] = []
        self.services: set[str] = set()
        lock = threading.Lock()
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body
                with lock:
                    collector.take(self.path, body)
                self.send_response(200)
                self.end_headers()

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.address = f"http://127.0.0.1:{self.server.server_address[1]}"

    def take(self, path: str, body: bytes) -> None:
        if path == "/v1/metrics":
            for resource in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                self.services |= {a.value.string_value for a in resource.resource.attributes if a.key == "service.name"}
                for metric in resource.scope_metrics[0].metrics:
                    points = metric.sum.data_points if metric.HasField("sum") else metric.gauge.data_points
                    self.metrics[metric.name] = list(points)
        else:
            assert path == "/v1/traces"
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                self.spans += resource.scope_spans[0].spans


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()
    yield made
    made.server.shutdown()
    made.server.server_close()


def attributes(item: Any) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in item.attributes}


def test_collector_gets_metrics_and_the_trace_of_each_checkpoint(collector: Collector, tmp_path: Path) -> None:
    keys = {
        "metrics.reporter.otel.exporter.endpoint": collector.address,
        "metrics.reporter.otel.interval": "100 ms",
        "metrics.reporter.otel.service.name": "shop",
        "traces.reporter.otel.exporter.endpoint": f"{collector.address}/v1/traces",
        "traces.reporter.otel.rounds": "true",
    }
    job = start(tmp_path, "running", **keys)  # which the installed face watches
    eventually(lambda: [s for s in collector.spans if s.name == "subsume"], "a checkpoint with all its steps has come")
    eventually(lambda: collector.metrics.get("tidegate_subtask_busy_ratio"), "metrics have come")
    job.cancel()
    eventually(lambda: [p for p in collector.metrics["tidegate_job_running"] if p.as_double == 0.0], "the end has come")

    assert collector.services == {"shop"}
    (running,) = collector.metrics["tidegate_job_running"]
    assert attributes(running) == {"job_id": "running-job", "job_name": "counting running"}
    assert running.as_double == 0.0, "the last figures are those of the end"
    busy = {
        (attributes(p)["operator"], attributes(p)["subtask"]) for p in collector.metrics["tidegate_subtask_busy_ratio"]
    }
    assert len(busy) == 4
    rounds = collector.metrics["tidegate_rounds"][0]
    assert (rounds.as_int or rounds.as_double) > 0

    by_trace: dict[bytes, list[Any]] = defaultdict(list)
    for span in collector.spans:
        by_trace[span.trace_id].append(span)
    whole = next(spans for spans in by_trace.values() if {"subsume", "checkpoint"} <= {s.name for s in spans})
    names = {span.span_id: span.name for span in whole}
    (root,) = (span for span in whole if not span.parent_span_id)
    assert root.name == "checkpoint" and attributes(root)["tidegate.job_id"] == "running-job"
    parents = {span.name: names[span.parent_span_id] for span in whole if span.parent_span_id}
    steps = {"trigger", "run", "complete", "commit", "subsume"}
    assert {name for name, parent in parents.items() if parent == "checkpoint"} == steps
    below_run = {name for name, parent in parents.items() if parent == "run"}
    assert {"align", "snapshot", "numbers 0", "numbers 1"} <= below_run
    assert all(root.start_time_unix_nano <= s.start_time_unix_nano <= s.end_time_unix_nano for s in whole)
    ids = [attributes(s)["tidegate.checkpoint_id"] for s in collector.spans if s.name == "checkpoint"]
    assert len(ids) == len(set(ids)), "each checkpoint is sent once"
    sent = [attributes(s)["tidegate.round"] for s in collector.spans if s.name == "round"]
    assert sent and len(sent) == len(set(sent))


def test_collector_that_does_not_answer_is_a_line_in_the_log(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    job = start(tmp_path, "finished", **{"metrics.reporter.otel.exporter.endpoint": "http://127.0.0.1:9"})
    TelemetryFace().watch(job, awaited=False)()
    assert job.result() is not None
    eventually(lambda: "OpenTelemetry does not take the metrics" in caplog.text, "it is logged")


@pytest.mark.parametrize(
    ("variables", "metrics", "traces"),
    [
        ({}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, "", ""),
        ({"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c:4318/v1/traces"}, None, ""),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4317", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_SDK_DISABLED": "true"}, None, None),
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318", "OTEL_METRICS_EXPORTER": "none"}, None, ""),
    ],
)
def test_variables_of_the_environment(variables: dict[str, str], metrics: str | None, traces: str | None) -> None:
    where = named(Telemetry(), variables)
    assert (where.metrics, where.traces) == (metrics, traces)


def test_configuration_goes_before_the_environment() -> None:
    where = named(Telemetry(metrics="http://mine:4318"), {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"})
    assert (where.metrics, where.traces) == ("http://mine:4318/v1/metrics", "")


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("metrics.reporter.otel.exporter.endpoint", "localhost:4318", "must be an address such as http"),
        ("metrics.reporter.otel.exporter.endpoint", "http://me:secret@c:4318", "without a user or a password"),
        ("metrics.reporter.otel.exporter.protocol", "gRPC", "HTTP"),
        ("metrics.reporter.otel.interval", "1 ms", "at least 100 ms"),
    ],
)
def test_wrong_key_is_refused_before_the_job_starts(tmp_path: Path, key: str, value: str, message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        start(tmp_path, "finished", **{key: value})


def test_missing_library_is_reported_with_the_command_that_installs_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "_has_telemetry", lambda: False)
    with pytest.raises(ConfigurationError, match=r"pip install 'tidegate\[otel\]'"):
        start(tmp_path, "finished", **{"traces.reporter.otel.exporter.endpoint": "http://c:4318"})

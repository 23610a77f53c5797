"""Sends the figures of a job to an OpenTelemetry collector: metrics, and each checkpoint as a trace of its steps and subtasks.

``execute`` finds the face by the entry point ``tidegate.faces``. The face works in a thread beside the job, and neither slows nor
breaks the job: a collector that does not answer is a line in the log.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import tidegate
from tidegate.base.secrets import masked
from tidegate.checkpoint.history import HistoryEntry
from tidegate.checkpoint.metadata import SAVEPOINT
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.prometheus import samples
from tidegate.runtime.settings import Telemetry
from tidegate.runtime.statistics import RoundStatistics
from tidegate.runtime.view import CheckpointView, JobView, Outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics.export import Metric, MetricsData
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import ReadableSpan

log = logging.getLogger(__name__)

_LOOK_S = 1.0
"""How often new checkpoints are looked for: a view shows only the latest ones."""
_LAST_S = 10.0
_TIMEOUT_S = 5
_MOST_SUBTASKS = 500
"""The slowest subtasks of a checkpoint that become spans."""
_NS = 1_000_000
_INSIDE_RUN = ("align", "snapshot")
_STEP_BEFORE = {"complete": 6, "commit": 7, "subsume": 8}
"""A step that begins when another one was passed."""


class TelemetryFace:
    """Made anew for each job by the entry point."""

    def watch(self, job: Any, *, awaited: bool) -> Callable[[], None]:
        """Send the figures of the job until its end. The returned function waits for the last ones, but not for ever."""
        if not isinstance(job, StartedJob):
            return lambda: None
        where = named(job.settings.telemetry, os.environ)
        if where.metrics is None and where.traces is None:
            return lambda: None
        sending = threading.Thread(target=_send, args=(job, where), name=f"tidegate-otel-{job.job_id}", daemon=True)
        sending.start()
        return lambda: sending.join(_LAST_S)


def named(configured: Telemetry, environment: Mapping[str, str]) -> Telemetry:
    """Return where the figures go: the configuration before OpenTelemetry's own variables. An empty address: the library reads the
    variables, with their certificates, headers and time limits."""
    if environment.get("OTEL_SDK_DISABLED", "").lower() == "true":
        return Telemetry()

    def of(kind: str) -> str | None:
        protocol = environment.get(f"OTEL_EXPORTER_OTLP_{kind}_PROTOCOL") or environment.get(
            "OTEL_EXPORTER_OTLP_PROTOCOL"
        )
        given = (f"OTEL_EXPORTER_OTLP_{kind}_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
        if not any(map(environment.get, given)) or environment.get(f"OTEL_{kind}_EXPORTER", "otlp") != "otlp":
            return None
        if protocol not in (None, "", "http/protobuf"):
            log.warning(
                "OpenTelemetry gets no %s: the protocol %s is not supported, http/protobuf is", kind.lower(), protocol
            )
            return None
        return ""

    return Telemetry(
        metrics=_address(configured.metrics, "/v1/metrics") if configured.metrics else of("METRICS"),
        traces=_address(configured.traces, "/v1/traces") if configured.traces else of("TRACES"),
        interval_ms=configured.interval_ms,
        rounds=configured.rounds,
        service=configured.service,
    )


def _address(given: str, path: str) -> str:
    """Return the address for one kind of figures. An address without a path is that of the collector, as in the variables."""
    return given if urlsplit(given).path.strip("/") else given.rstrip("/") + path


def _send(job: StartedJob, where: Telemetry) -> None:
    try:
        sender = _Sender(where)
    except ImportError as error:
        log.warning("OpenTelemetry gets no figures of job %s: %s; run: pip install 'tidegate[otel]'", job.job_id, error)
        return
    due = 0.0
    over = False
    while not over:
        over = job.wait(min(_LOOK_S, where.interval_ms / 1000))
        view = job.view()
        sender.traces(view, over)
        if over or time.monotonic() >= due:
            due = time.monotonic() + where.interval_ms / 1000
            sender.metrics(view)
    sender.close()


class _Sender:
    """Has the exporters of one job. Makes metrics and spans from views, each checkpoint and round once."""

    def __init__(self, where: Telemetry) -> None:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource

        service = where.service or os.environ.get("OTEL_SERVICE_NAME") or "tidegate"
        self._resource = Resource.create({"service.name": service, "service.version": tidegate.__version__})
        self._metrics = (
            OTLPMetricExporter(where.metrics or None, timeout=_TIMEOUT_S) if where.metrics is not None else None
        )
        self._traces = OTLPSpanExporter(where.traces or None, timeout=_TIMEOUT_S) if where.traces is not None else None
        self._rounds = where.rounds
        self._sent: set[int] = set()
        self._round = 0
        self._is_warned = False

    def metrics(self, view: JobView) -> None:
        if self._metrics is not None:
            self._export(self._metrics.export, metrics_of(view, self._resource, time.time_ns()), "metrics")

    def traces(self, view: JobView, over: bool) -> None:
        if self._traces is None:
            return
        spans = [span for each in self._ended(view, over) for span in spans_of(view, each, self._resource)]
        if self._rounds:
            new = [each for each in view.rounds if each.round > self._round]
            spans += [span_of_round(view, each, self._resource) for each in new]
            self._round = new[-1].round if new else self._round
        if spans:
            self._export(self._traces.export, spans, "traces")

    def _ended(self, view: JobView, over: bool) -> Iterator[CheckpointView]:
        """Yield the checkpoints that have ended since the last call: all their steps are known, or will never be."""
        shown = view.checkpoints
        self._sent &= {each.checkpoint_id for each in shown}
        for place, each in enumerate(shown):
            last = 7 if each.kind == SAVEPOINT else 9
            is_whole = last in each.passed_ms or each.status is Outcome.FAILED or over or place < len(shown) - 2
            if each.status is not Outcome.IN_PROGRESS and is_whole and each.checkpoint_id not in self._sent:
                self._sent.add(each.checkpoint_id)
                yield each

    def _export(self, export: Callable[[Any], Any], what: Any, kind: str) -> None:
        try:
            result = export(what)
            failed = None if result.name == "SUCCESS" else result.name
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"
        if failed is not None and not self._is_warned:
            self._is_warned = True
            log.warning("OpenTelemetry does not take the %s; further failures are not logged: %s", kind, failed)

    def close(self) -> None:
        for exporter in (self._metrics, self._traces):
            if exporter is not None:
                exporter.shutdown()


# -- metrics ---------------------------------------------------------------------------------------------------------------


def metrics_of(view: JobView, resource: Resource, now_ns: int) -> MetricsData:
    """Make metrics with the names and labels that Prometheus gets."""
    from opentelemetry.sdk.metrics.export import (
        AggregationTemporality,
        Gauge,
        Metric,
        MetricsData,
        NumberDataPoint,
        ResourceMetrics,
        ScopeMetrics,
        Sum,
    )

    job = {"job_id": view.job_id, "job_name": view.name}
    families: dict[tuple[str, str, str], list[NumberDataPoint]] = {}
    for name, kind, text, labels, value in samples(view):
        point = NumberDataPoint({**job, **labels}, view.created_ms * _NS, now_ns, value)
        families.setdefault((name, kind, text), []).append(point)

    def metric(name: str, kind: str, text: str, points: Sequence[NumberDataPoint]) -> Metric:
        if kind == "counter":
            bare = name.removesuffix("_total")
            # A gauge may have this name: Prometheus tells them apart by the suffix.
            shown = name if bare in gauges else bare
            return Metric(shown, text, "", Sum(points, AggregationTemporality.CUMULATIVE, True))
        return Metric(name, text, "", Gauge(points))

    gauges = {name for name, kind, _ in families if kind != "counter"}
    made = [metric(*family, points) for family, points in families.items()]
    scoped = ScopeMetrics(_scope(), made, "")
    return MetricsData([ResourceMetrics(resource, [scoped], "")])


def _scope() -> Any:
    from opentelemetry.sdk.util.instrumentation import InstrumentationScope

    return InstrumentationScope("tidegate", tidegate.__version__)


# -- traces ----------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Trace:
    """Makes the spans of one trace."""

    resource: Resource
    trace_id: int

    def span(
        self,
        name: str,
        times_ms: tuple[float, float],
        parent: ReadableSpan | None = None,
        error: str | None = None,
        **attributes: Any,
    ) -> ReadableSpan:
        from opentelemetry.sdk.trace import ReadableSpan
        from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
        from opentelemetry.trace import SpanContext, TraceFlags
        from opentelemetry.trace.status import Status, StatusCode

        start, end = times_ms
        sampled = TraceFlags(TraceFlags.SAMPLED)
        return ReadableSpan(
            name,
            SpanContext(self.trace_id, RandomIdGenerator().generate_span_id(), False, sampled),
            parent.context if parent is not None else None,
            self.resource,
            {f"tidegate.{key}": value for key, value in attributes.items() if value is not None},
            status=Status(StatusCode.OK) if error is None else Status(StatusCode.ERROR, error),
            start_time=round(start * _NS),
            end_time=round(max(start, end) * _NS),
            instrumentation_scope=_scope(),
        )


def _trace(resource: Resource) -> _Trace:
    from opentelemetry.sdk.trace.id_generator import RandomIdGenerator

    return _Trace(resource, RandomIdGenerator().generate_trace_id())


def spans_of(view: JobView, each: CheckpointView, resource: Resource) -> list[ReadableSpan]:
    """Make the trace of a checkpoint: the checkpoint, below it its steps, and below the step ``run`` the subtasks."""
    trace, entry = _trace(resource), each.entry
    began = each.passed_ms.get(1, entry.trigger_ms if entry is not None else 0)
    ended = max([*each.passed_ms.values(), *([entry.end_ms] if entry is not None else [])], default=began)
    root = trace.span(
        each.kind,
        (began, ended),
        error=masked(each.message or "failed") if each.status is Outcome.FAILED else None,
        job_id=view.job_id,
        job_name=view.name,
        checkpoint_id=each.checkpoint_id,
        attempt=each.attempt,
        status=each.status.value,
        reason=entry.reason if entry is not None and entry.reason else None,
        size_bytes=each.size,
        incremental_bytes=entry.incremental if entry is not None else None,
        in_flight_bytes=entry.in_flight_bytes if entry is not None else None,
    )
    if entry is None:
        return [root]
    times = dict(_steps(began, each, entry))
    steps: dict[str, ReadableSpan] = {}
    for step, taken in times.items():
        parent = steps.get("run", root) if step in _INSIDE_RUN else root
        steps[step] = trace.span(step, taken, parent, checkpoint_id=each.checkpoint_id)
    names = {operator.id: operator.name for operator in view.operators}
    run_began = times.get("run", (began, began))[0]
    slowest = sorted(each.subtasks, key=lambda one: -(one.run_ms + one.align_ms + one.snapshot_ms))[:_MOST_SUBTASKS]
    subtasks = [
        trace.span(
            f"{names.get(one.operator, one.operator)} {one.subtask}",
            _of_subtask(run_began, one.run_ms or one.align_ms + one.snapshot_ms, one.acknowledged_ms),
            steps.get("run", root),
            operator=names.get(one.operator),
            subtask=one.subtask,
            run_ms=one.run_ms,
            align_ms=one.align_ms,
            snapshot_ms=one.snapshot_ms,
            size_bytes=one.size,
            incremental_bytes=one.incremental,
            in_flight_bytes=one.in_flight_bytes,
        )
        for one in slowest
    ]
    return [root, *steps.values(), *subtasks]


def _of_subtask(run_began: float, took_ms: float, acknowledged_ms: int | None) -> tuple[float, float]:
    """Return when the subtask ran. It ended with its snapshot, as far as known."""
    end = run_began + took_ms if acknowledged_ms is None else acknowledged_ms
    return max(run_began, end - took_ms), end


def _steps(began: float, each: CheckpointView, entry: HistoryEntry) -> Iterator[tuple[str, tuple[float, float]]]:
    """Yield when each step began and ended. Steps 4 and 5 are inside of step 3, at its end."""
    at = began
    run_end = began
    for step, took_ms in entry.steps_ms.items():
        if step in _INSIDE_RUN:
            later = entry.steps_ms.get("snapshot", 0.0) if step == "align" else 0.0
            start = run_end - later - took_ms
        else:
            start = max(at, each.passed_ms.get(_STEP_BEFORE.get(step, 0), at))
            at = start + took_ms
            run_end = at if step == "run" else run_end
        yield step, (max(began, start), max(began, start + took_ms))


def span_of_round(view: JobView, each: RoundStatistics, resource: Resource) -> ReadableSpan:
    """Make the trace of a round: one span, with the parts of its time as attributes."""
    parts: dict[str, Any] = {f"{part}_seconds": seconds for part, seconds in each.parts.items()}
    return _trace(resource).span(
        "round",
        (each.started_ms, each.started_ms + 1000 * each.seconds),
        job_id=view.job_id,
        job_name=view.name,
        round=each.round,
        checkpoint_id=each.checkpoint_id,
        records_in=each.records_in,
        records_out=each.records_out,
        **parts,
    )

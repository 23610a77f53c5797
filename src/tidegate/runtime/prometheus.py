"""A job's figures as Prometheus reads them, and a door at which it may ask (``metrics.reporter.prom.port``)."""

from __future__ import annotations

import logging
import re
import secrets
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tidegate.base.errors import ConfigurationError
from tidegate.base.watermarks import MAX_WATERMARK, MIN_WATERMARK
from tidegate.checkpoint.history import HistoryEntry, OperatorFigures
from tidegate.common.options import METRICS_PORT, METRICS_TOKEN_FILE
from tidegate.operators.contracts.metrics import DISTRIBUTION, METER
from tidegate.runtime.view import JobView, OperatorView, Outcome

log = logging.getLogger(__name__)

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_IDLE_S, _MOST_CONNECTIONS = 5.0, 64
Sample = tuple[str, str, str, dict[str, str], float]
"""Name, type, help, labels, value."""


def prometheus_text(view: JobView) -> str:
    """The text exposition format, version 0.0.4: the job, its operators and checkpoints, and what its functions measure."""
    job = {"job_id": view.job_id, "job_name": view.name}
    families: dict[str, tuple[str, str, list[str]]] = {}
    for name, kind, text, labels, value in _samples(view):
        lines = families.setdefault(name, (kind, text, []))[2]
        lines.append(f"{name}{{{_labels({**job, **labels})}}} {_number(value)}")
    out: list[str] = []
    for name, (kind, text, lines) in families.items():
        out += [f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines]
    return "\n".join(out) + "\n"


def _samples(view: JobView) -> Iterator[Sample]:
    yield "tidegate_job_running", "gauge", "1 while the job runs.", {}, float(view.status.name == "RUNNING")
    yield "tidegate_job_attempts_total", "counter", "Attempts so far.", {}, len(view.attempts)
    yield from _round_samples(view)
    for operator in view.operators:
        yield from _operator_samples(operator)
    yield from _checkpoint_samples(view)
    names = {operator.id: operator.name for operator in view.operators}
    for metric in view.metrics.values():
        labels = {"operator": names.get(metric.operator, ""), "subtask": str(metric.subtask)}
        labels |= {_name(variable): extra for variable, extra in metric.groups if extra is not None}
        name = f"tidegate_operator_{_name(metric.full_name)}"
        text = "Measured by a function of the job."
        if metric.kind == METER:
            yield f"{name}_total", "counter", text, labels, metric.value
            yield f"{name}_rate", "gauge", text, labels, metric.rate or 0.0
        elif metric.kind == DISTRIBUTION:
            yield f"{name}_sum", "gauge", text, labels, metric.value
            yield f"{name}_count", "gauge", text, labels, metric.count or 0
            yield f"{name}_min", "gauge", text, labels, metric.least or 0
            yield f"{name}_max", "gauge", text, labels, metric.greatest or 0
        else:  # a counter of Flink's may go down, one of Prometheus' may not
            yield name, "gauge", text, labels, metric.value


def _round_samples(view: JobView) -> Iterator[Sample]:
    if view.rounds:
        latest = view.rounds[-1]
        yield "tidegate_rounds_total", "counter", "Rounds so far.", {}, latest.round
        yield "tidegate_round_seconds", "gauge", "The latest round.", {}, latest.seconds
        text = "Local stores that were built from all their files."
        yield "tidegate_state_rebuilds_total", "counter", text, {}, view.totals.rebuilds


def _operator_samples(o: OperatorView) -> Iterator[Sample]:
    labels = {"operator": o.name, "operator_id": str(o.id)}
    prefix = "tidegate_operator_"
    for name, kind, text, value in (
        ("records_in_total", "counter", "Records that came into the operator's chain.", o.records_in),
        ("records_out_total", "counter", "Records that left the operator's chain.", o.records_out),
        ("records_in_per_second", "gauge", "In the latest round.", o.records_in_per_second),
        ("records_out_per_second", "gauge", "In the latest round.", o.records_out_per_second),
        ("busy_seconds", "gauge", "Of the slowest subtask, in the latest round.", o.busy_seconds),
        ("watermark_milliseconds", "gauge", "Event time: of the subtask that is behind.", o.watermark),
    ):
        if value is not None and value not in (MIN_WATERMARK, MAX_WATERMARK):
            yield prefix + name, kind, text, labels, value


def _checkpoint_samples(view: JobView) -> Iterator[Sample]:
    done = [shown for shown in view.checkpoints if shown.status is Outcome.COMPLETED]
    failed = [shown for shown in view.checkpoints if shown.status is Outcome.FAILED]
    totals = view.totals
    yield "tidegate_checkpoints_completed", "gauge", "Of those that are shown.", {}, len(done)
    yield "tidegate_checkpoints_failed", "gauge", "Of those that are shown.", {}, len(failed)
    yield "tidegate_checkpoints_completed_total", "counter", "Checkpoints completed so far.", {}, totals.checkpoints
    for reason, count in totals.failed_checkpoints.items():
        yield "tidegate_checkpoints_failed_total", "counter", "Failed so far, by reason.", {"reason": reason}, count
    if done:
        latest = done[-1]
        seconds = (latest.passed_ms[7] - latest.passed_ms[1]) / 1000
        yield "tidegate_checkpoint_id", "gauge", "The latest complete one.", {}, latest.checkpoint_id
        yield "tidegate_checkpoint_size_bytes", "gauge", "The latest complete one.", {}, latest.size
        yield "tidegate_checkpoint_seconds", "gauge", "The latest complete one: steps 1 to 7.", {}, seconds
    measured = next((shown.entry for shown in reversed(done) if shown.entry is not None), None)
    if measured is not None:
        yield from _measured(measured)


def _measured(entry: HistoryEntry) -> Iterator[Sample]:
    """Of the latest complete checkpoint: what its history has."""
    text = "The latest complete one."
    yield "tidegate_checkpoint_incremental_bytes", "gauge", f"{text[:-1]}: new in it.", {}, entry.incremental
    yield "tidegate_checkpoint_in_flight_bytes", "gauge", text, {}, entry.in_flight_bytes
    yield "tidegate_checkpoint_in_flight_records", "gauge", text, {}, entry.in_flight_records
    if entry.behind is not None:
        yield "tidegate_checkpoint_records_behind", "gauge", "Of all sources that can tell.", {}, entry.behind
    for step, took_ms in entry.steps_ms.items():
        name = "tidegate_checkpoint_step_seconds"
        yield name, "gauge", "The latest complete one, by step.", {"step": step}, took_ms / 1000
    for uid_hash, figures in entry.operators.items():
        yield from _measured_operator({"operator": figures.name, "operator_uid_hash": uid_hash}, figures)


def _measured_operator(labels: dict[str, str], figures: OperatorFigures) -> Iterator[Sample]:
    prefix, text = "tidegate_checkpoint_operator_", "In the latest complete checkpoint."
    for name, value in (
        ("size_bytes", figures.size),
        ("incremental_bytes", figures.incremental),
        ("in_flight_bytes", figures.in_flight_bytes),
        ("in_flight_records", figures.in_flight_records),
        ("records_behind", figures.behind),
    ):
        if value is not None:
            yield prefix + name, "gauge", text, labels, value
    for step, took_ms in (("run", figures.run_ms), ("align", figures.align_ms), ("snapshot", figures.snapshot_ms)):
        took = "Of its slowest subtask, in the latest complete checkpoint."
        yield f"{prefix}step_seconds", "gauge", took, {**labels, "step": step}, took_ms / 1000


def _name(text: str) -> str:
    return re.sub(r"[^a-zA-Z0-9_:]", "_", text)


def _labels(labels: dict[str, str]) -> str:
    escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
    return ",".join(f'{name}="{value}"' for name, value in escaped.items())


def _number(value: float) -> str:
    return str(int(value)) if value == int(value) else repr(float(value))


class PrometheusServer:
    """Answers ``GET /metrics`` on the loopback address, as long as the job runs. A web page whose name points at that address gets
    nothing: its requests carry its own name."""

    def __init__(self, ports: range, view: Callable[[], JobView], token_file: str | None = None) -> None:
        """The first free port of ``ports``. ``token_file``: every request needs the token in it. Raises if no port is free, or
        there is no token."""
        expected = None if token_file is None else f"bearer {_token(token_file)}".encode()

        class Handler(BaseHTTPRequestHandler):
            timeout = _IDLE_S

            def do_GET(self) -> None:
                if not _is_loopback(self.headers.get_all("Host", [])):
                    return self.send_error(403, "The Host of a request must be 127.0.0.1 or localhost")
                if expected is not None and not self._has_token(expected):
                    return self.send_error(401, "Every request needs the token: Authorization: Bearer TOKEN")
                if self.path.partition("?")[0] not in ("/", "/metrics"):
                    return self.send_error(404)
                body = prometheus_text(view()).encode()
                self.send_response(200)
                self.send_header("Content-Type", CONTENT_TYPE)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def _has_token(self, expected: bytes) -> bool:
                scheme, _, token = self.headers.get("Authorization", "").partition(" ")
                return secrets.compare_digest(f"{scheme.lower()} {token.strip()}".encode(), expected)

            def log_message(self, format: str, *arguments: Any) -> None:
                log.debug(format, *arguments)

        self._server = _listening(ports, Handler)
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="tidegate-metrics", daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


class _LimitedServer(ThreadingHTTPServer):
    """A thread for each connection, and only so many: any user of the host can connect."""

    daemon_threads = True

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self._free = threading.BoundedSemaphore(_MOST_CONNECTIONS)
        super().__init__(address, handler)

    def process_request(self, request: Any, client_address: Any) -> None:
        if self._free.acquire(blocking=False):
            super().process_request(request, client_address)
        else:
            self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._free.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        log.debug("a request for metrics failed", exc_info=True)


def _is_loopback(hosts: list[str]) -> bool:
    """By any port: who comes through a tunnel names the port at its other end."""
    return (
        len(hosts) == 1
        and re.fullmatch(r"(127\.0\.0\.1|localhost)(:\d+)?", hosts[0].strip(), re.IGNORECASE) is not None
    )


def _token(file: str) -> str:
    try:
        token, found = Path(file).read_text().strip(), "an empty file"
    except OSError as error:
        token, found = "", f"{type(error).__name__}: {error}"
    if not token:
        raise ConfigurationError(
            f"'{METRICS_TOKEN_FILE.key}' names a file with a token",
            where=file,
            found=found,
            cure="openssl rand -hex 32 > file",
        )
    return token


def _listening(ports: range, handler: type[BaseHTTPRequestHandler]) -> ThreadingHTTPServer:
    for port in ports:
        try:
            return _LimitedServer(("127.0.0.1", port), handler)
        except OSError as error:
            reason = error
    raise ConfigurationError(
        f"'{METRICS_PORT.key}' names a free port",
        found=f"{ports.start} to {ports.stop - 1}: {reason}" if len(ports) > 1 else f"{ports.start}: {reason}",
        cure="name another one, or a range such as 9249-9260",
    )

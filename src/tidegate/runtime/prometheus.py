"""A job's figures as Prometheus reads them, and the port at which Prometheus asks (``metrics.reporter.prom.port``)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Protocol

from tidegate.base.clock import MAX_WATERMARK, MIN_WATERMARK
from tidegate.checkpoint.history import HistoryEntry, OperatorFigures
from tidegate.operators.contracts.metrics import DISTRIBUTION, METER
from tidegate.runtime.view import JobView, OperatorView, Outcome

if TYPE_CHECKING:
    from prometheus_client import Metric

REPORTERS = "tidegate.reporters"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
Sample = tuple[str, str, str, dict[str, str], float]
"""Name, type, help, labels, value."""


class MetricsReporter(Protocol):
    port: int

    def close(self) -> None: ...


def open_metrics_port(ports: range, view: Callable[[], JobView], token_file: str | None) -> MetricsReporter:
    """Let Prometheus ask at the first free port of ``ports`` until ``close``. Raise ConfigurationError if that cannot be.

    The server is the one of ``control/server.py``, found through an entry point: this room may not import it.
    """
    (point,) = entry_points(group=REPORTERS, name="prometheus")
    port: MetricsReporter = point.load()(ports, view, token_file)
    return port


def prometheus_text(view: JobView) -> str:
    """Write the text exposition format, version 0.0.4: the job, its operators and checkpoints, and what its functions measure."""
    from prometheus_client import Metric, generate_latest  # only a job that Prometheus asks for needs it
    from prometheus_client.registry import Collector

    job = {"job_id": view.job_id, "job_name": view.name}
    families: dict[str, Metric] = {}
    for name, kind, text, labels, value in samples(view):
        if name not in families:
            # The library appends the suffix of a counter to the name of the family.
            families[name] = Metric(name.removesuffix("_total") if kind == "counter" else name, text, kind)
        families[name].add_sample(name, {**job, **labels}, value)

    class Families(Collector):
        def collect(self) -> Iterator[Metric]:
            return iter(families.values())

    return generate_latest(Families()).decode()


def merged_text(texts: Iterable[str]) -> str:
    """Write the figures of several jobs as one text. Each family has its help and type once, as the format requires."""
    families: dict[str, list[str]] = {}
    for text in texts:
        inside: list[str] = []
        is_new = False
        for line in text.splitlines():
            if line.startswith("# HELP "):
                inside = families.setdefault(line.split(" ")[2], [line])
                is_new = len(inside) == 1
            elif is_new or not line.startswith("#"):
                inside.append(line)
    return "".join(f"{line}\n" for lines in families.values() for line in lines)


def samples(view: JobView) -> Iterator[Sample]:
    yield "tidegate_job_running", "gauge", "1 while the job runs.", {}, float(view.status.name == "RUNNING")
    yield "tidegate_job_attempts_total", "counter", "Attempts so far.", {}, view.attempts_so_far
    yield from _round_samples(view)
    for operator in view.operators:
        yield from _operator_samples(operator)
    yield from _subtask_samples(view)
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
        else:  # a counter of Flink may go down, a counter of Prometheus may not
            yield name, "gauge", text, labels, metric.value


def _round_samples(view: JobView) -> Iterator[Sample]:
    if view.rounds:
        latest = view.rounds[-1]
        yield "tidegate_rounds_total", "counter", "Rounds so far.", {}, latest.round
        yield "tidegate_round_seconds", "gauge", "The latest round.", {}, latest.seconds
        for part, seconds in latest.parts.items():
            yield "tidegate_round_part_seconds", "gauge", "Where the latest round's time went.", {"part": part}, seconds
        for level, seconds in enumerate(latest.levels):
            text = "How long the slowest task of the level worked in the latest round."
            yield "tidegate_round_level_seconds", "gauge", text, {"level": str(level)}, seconds
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
        ("watermark_milliseconds", "gauge", "Event time: of the slowest subtask.", o.watermark),
        ("state_bytes", "gauge", "Of all state files.", o.state_bytes),
    ):
        if value is not None and value not in (MIN_WATERMARK, MAX_WATERMARK):
            yield prefix + name, kind, text, labels, value
    for state, size in o.states.items():
        yield "tidegate_state_bytes", "gauge", "Of the files of one state, about.", {**labels, "state": state}, size
    # The key is no label: it may be personal data, and there may be millions of keys
    for rank, heavy in enumerate(o.heavy_keys, 1):
        where = {**labels, "rank": str(rank), "subtask": str(heavy.subtask)}
        yield (
            "tidegate_heavy_key_share",
            "gauge",
            "Of the operator's records, for its heaviest keys.",
            where,
            heavy.share,
        )


MOST_SUBTASKS = 1000
"""Of a job with more subtasks only the figures of its operators are given: a scraper would store twelve series for each subtask."""


def _subtask_samples(view: JobView) -> Iterator[Sample]:
    if len(view.subtasks) > MOST_SUBTASKS:
        return
    heads: dict[int, OperatorView] = {}
    for operator in view.operators:
        heads.setdefault(operator.chain, operator)
    for s in view.subtasks:
        head = heads[s.chain]
        labels = {"operator": head.name, "operator_id": str(head.id), "subtask": str(s.subtask)}
        for name, kind, text, value in (
            ("records_in_total", "counter", "Records that came into the subtask.", s.records_in),
            ("records_out_total", "counter", "Records that left the subtask.", s.records_out),
            ("bytes_in_total", "counter", "Bytes of chunks that came into the subtask.", s.bytes_in),
            ("bytes_out_total", "counter", "Bytes of chunks that left the subtask.", s.bytes_out),
            ("retries_total", "counter", "How often a task of the subtask was run again.", s.retries),
            ("busy_ratio", "gauge", "Part of the latest rounds in which the subtask worked.", s.busy),
            ("back_pressured_ratio", "gauge", "Part of them in which it waited for slower subtasks.", s.back_pressured),
            ("idle_ratio", "gauge", "Part of them in which it had nothing to do.", s.idle),
            ("seconds", "gauge", "How long the subtask took in the latest round.", s.seconds),
            ("state_bytes", "gauge", "Of all state files of the subtask.", s.state_bytes),
            ("watermark_milliseconds", "gauge", "Event time of the subtask.", s.watermark),
        ):
            if value is not None and value not in (MIN_WATERMARK, MAX_WATERMARK):
                yield f"tidegate_subtask_{name}", kind, text, labels, value
        if s.lag is not None:
            text = "What the source knows of and has not read."
            yield "tidegate_subtask_lag", "gauge", text, {**labels, "unit": s.lag_unit}, s.lag


def _checkpoint_samples(view: JobView) -> Iterator[Sample]:
    done = [shown for shown in view.checkpoints if shown.status is Outcome.COMPLETED]
    failed = [shown for shown in view.checkpoints if shown.status is Outcome.FAILED]
    totals = view.totals
    yield "tidegate_checkpoints_completed", "gauge", "Of those that are shown.", {}, len(done)
    yield "tidegate_checkpoints_failed", "gauge", "Of those that are shown.", {}, len(failed)
    yield "tidegate_checkpoints_completed_total", "counter", "Checkpoints completed so far.", {}, totals.checkpoints
    yield "tidegate_savepoints_completed_total", "counter", "Savepoints completed so far.", {}, totals.savepoints
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

"""A job as HTML, for a notebook: state, rates, checkpoints and the graph at one moment. Every text is escaped."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape

from tidegate.base.plain_text import duration
from tidegate.graph.drawing import Arrow, Box, drawn
from tidegate.runtime.view import CheckpointView, JobView, OperatorView

_CHECKPOINTS = 5


def page(view: JobView, now_ms: int) -> str:
    """Return a part of a page, without scripts. It shows the job as it was at ``now_ms`` and does not change."""
    took = duration(max((view.ended_ms or now_ms) - view.created_ms, 0), coarse=True)
    facts = [
        ("state", f"{view.status.name}, {took}"),
        ("records", f"{view.totals.records:,} in {view.totals.rounds:,} rounds"),
        ("rate", f"{view.records_per_second(now_ms):,.0f} records/s" if view.ended_ms is None else ""),
        ("checkpoints", _counted(view)),
        ("guarantee", str(view.guarantee) if view.guarantee is not None else ""),
        ("failure", f"{view.exceptions[-1].kind}: {view.exceptions[-1].message}" if view.exceptions else ""),
    ]
    parts = [
        f"<div><strong>{escape(view.name)}</strong> <code>{escape(view.job_id)}</code>",
        _table((name, value) for name, value in facts if value),
        _checkpoints(view.checkpoints[-_CHECKPOINTS:]),
        _graph(view),
        "</div>",
    ]
    return "\n".join(filter(None, parts))


def _counted(view: JobView) -> str:
    if view.checkpoint_interval_ms is None and not view.checkpoints:
        return "none are taken"
    failed = sum(view.totals.failed_checkpoints.values())
    return f"{view.totals.checkpoints:,} complete" + (f", {failed:,} failed" if failed else "")


def _table(rows: Iterable[tuple[str, str]]) -> str:
    lines = [
        f"<tr><th style='text-align:left'>{escape(a)}</th><td style='text-align:left'>{escape(b)}</td></tr>"
        for a, b in rows
    ]
    return f"<table>{''.join(lines)}</table>"


def _checkpoints(shown: tuple[CheckpointView, ...]) -> str:
    if not shown:
        return ""
    head = "".join(f"<th>{name}</th>" for name in ("id", "kind", "status", "took", "bytes"))
    rows = "".join(
        f"<tr><td>{each.checkpoint_id}</td><td>{escape(each.kind)}</td><td>{escape(each.status.value)}</td>"
        f"<td>{escape(_took(each))}</td><td>{each.size:,}</td></tr>"
        for each in reversed(shown)
    )
    return f"<table><tr>{head}</tr>{rows}</table>"


def _took(shown: CheckpointView) -> str:
    return duration(round(shown.entry.duration_ms)) if shown.entry is not None else ""


def _graph(view: JobView) -> str:
    chains: dict[int, list[OperatorView]] = {}
    for operator in view.operators:
        chains.setdefault(operator.chain, []).append(operator)
    boxes = [Box(chain, tuple(o.label for o in members), _note(members)) for chain, members in chains.items()]
    chain_of = {o.id: o.chain for o in view.operators}
    arrows = [Arrow(chain_of[i], o.chain) for o in view.operators for i in o.inputs if i in chain_of]
    return drawn(view.name, boxes, arrows) if boxes else ""


def _note(members: list[OperatorView]) -> str:
    received = [o.records_in for o in members if o.records_in is not None]
    rates = [o.records_in_per_second for o in members if o.records_in_per_second is not None]
    parts = [f"parallelism {members[0].parallelism}"]
    parts += [f"{sum(received):,} records"] if received else []
    parts += [f"{sum(rates):,.0f}/s"] if rates else []
    return ", ".join(parts)

"""Draws a graph as SVG: boxes in columns by their level, arrows from left to right. Needs nothing but Python.

The layout is the usual one for layered graphs, small: an arrow that skips columns gets a place in each of them, the boxes of a
column are ordered by the middle of what they are connected with, and every column is centred.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

from tidegate.graph.plan import JobGraph

_LINE, _PADDING, _GAP_X, _GAP_Y, _CHARACTER = 17, 12, 110, 26, 7.4
_NARROWEST, _LONGEST_LINE = 120, 46
_SWEEPS = 4
_STYLE = """\
.tg-panel { fill: #f6f9fa; stroke: #cfdadf } .tg-box { fill: #ffffff; stroke: #2f8f83 } .tg-line { stroke: #5b7682; fill: none }
.tg-tip { fill: #5b7682 } .tg-text { font: 12px system-ui, sans-serif; fill: #1d2b33 } .tg-note { font-size: 11px; fill: #51636d }
@media (prefers-color-scheme: dark) {
.tg-panel { fill: #18232a; stroke: #33454e } .tg-box { fill: #22323b; stroke: #57bdb0 } .tg-line { stroke: #86a1ad }
.tg-tip { fill: #86a1ad } .tg-text { fill: #e3ecef } .tg-note { fill: #a9bac2 }
}"""


@dataclass(frozen=True)
class Box:
    """``lines`` are its text, ``note`` stands below them in small letters."""

    id: int
    lines: tuple[str, ...]
    note: str = ""


@dataclass(frozen=True)
class Arrow:
    """From a box to another one. ``text``: how records get there."""

    source: int
    target: int
    text: str = ""


@dataclass
class _Slot:
    """A place in a column: a box, or the passage of an arrow that goes further. ``y`` is its middle."""

    box: Box | None
    y: float = 0.0
    left: float = 0.0
    width: float = 0.0
    height: float = 0.0


def of_graph(graph: JobGraph, notes: Mapping[int, str] | None = None) -> str:
    """Draw the chains of a job. ``notes``: a line more for the chain with this id."""
    boxes = [
        Box(
            chain.id,
            tuple(o.label for o in chain.operators),
            "; ".join(filter(None, [f"parallelism {chain.parallelism}", (notes or {}).get(chain.id)])),
        )
        for chain in graph.chains
    ]
    arrows = [
        Arrow(
            chain.id,
            graph.chain_of[edge.target],
            edge.partitioning.ship.value.lower() + (f", {edge.tag}" if edge.tag else ""),
        )
        for chain in graph.chains
        for node in chain.head.walk()
        for edge in node.edges
    ]
    return drawn(graph.name, boxes, arrows)


def drawn(title: str, boxes: Sequence[Box], arrows: Sequence[Arrow]) -> str:
    """Return the drawing. Every text is escaped. An arrow whose box is missing is left out."""
    known = {box.id for box in boxes}
    arrows = [a for a in dict.fromkeys(arrows) if a.source in known and a.target in known and a.source != a.target]
    columns, paths = _columns(boxes, arrows)
    _order(columns, paths)
    width, height = _place(columns)
    body = [part for column in columns for slot in column if slot.box is not None for part in _box(slot, slot.box)]
    lines = [part for arrow, path in zip(arrows, paths, strict=True) for part in _arrow(arrow, path)]
    size = f'width="{width:g}" height="{height:g}" viewBox="0 0 {width:g} {height:g}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">',
            f"<title>{escape(title)}</title>",
            f"<style>{_STYLE}</style>",
            '<defs><marker id="tg-tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
            '<path class="tg-tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>',
            f'<rect class="tg-panel" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="8"/>',
            *lines,
            *body,
            "</svg>",
        ]
    )


# -- layout


def _columns(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> tuple[list[list[_Slot]], list[list[_Slot]]]:
    """Return the columns, and for each arrow the slots that it passes, from its source to its target."""
    level = _levels(boxes, arrows)
    columns: list[list[_Slot]] = [[] for _ in range(max(level.values(), default=-1) + 1)]
    slots: dict[int, _Slot] = {}
    for box in boxes:
        slots[box.id] = _Slot(box)
        columns[level[box.id]].append(slots[box.id])
    paths = []
    for arrow in arrows:
        between = [_Slot(None) for _ in range(level[arrow.source] + 1, level[arrow.target])]
        for offset, slot in enumerate(between, 1):
            columns[level[arrow.source] + offset].append(slot)
        paths.append([slots[arrow.source], *between, slots[arrow.target]])
    return columns, paths


def _levels(boxes: Sequence[Box], arrows: Sequence[Arrow]) -> dict[int, int]:
    """The longest way from a source. A graph with a circle, which no program makes, ends too."""
    level = {box.id: 0 for box in boxes}
    for _ in boxes:
        changed = False
        for arrow in arrows:
            if level[arrow.target] <= level[arrow.source] < len(boxes) - 1:
                level[arrow.target], changed = level[arrow.source] + 1, True
        if not changed:
            break
    return level


def _order(columns: list[list[_Slot]], paths: list[list[_Slot]]) -> None:
    """Sort each column by the middle of the neighbours in the column before, then after, and so on: fewer arrows cross."""
    before: dict[int, list[_Slot]] = {}
    after: dict[int, list[_Slot]] = {}
    for path in paths:
        for one, other in pairwise(path):
            after.setdefault(id(one), []).append(other)
            before.setdefault(id(other), []).append(one)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns if forward else reversed(columns):
            place = {id(slot): float(n) for each in columns for n, slot in enumerate(each)}
            neighbours = before if forward else after

            def middle(
                slot: _Slot, place: dict[int, float] = place, near: dict[int, list[_Slot]] = neighbours
            ) -> float:
                found = [place[id(other)] for other in near.get(id(slot), ())]
                return sum(found) / len(found) if found else place[id(slot)]

            column.sort(key=middle)


def _place(columns: list[list[_Slot]]) -> tuple[float, float]:
    """Give every slot its place, and return the size of the drawing."""
    for column in columns:
        for slot in column:
            slot.height = _PADDING if slot.box is None else _height(slot.box)
    tallest = max((_tall(column) for column in columns), default=0.0)
    x = float(_PADDING)
    for column in columns:
        width = max([_NARROWEST, *(_width(slot.box) for slot in column if slot.box is not None)])
        y = _PADDING + (tallest - _tall(column)) / 2
        for slot in column:
            slot.left, slot.width, slot.y = x, width, y + slot.height / 2
            y += slot.height + _GAP_Y
        x += width + _GAP_X
    return max(x - _GAP_X, 160.0) + _PADDING, max(tallest, 30.0) + 2 * _PADDING


def _tall(column: list[_Slot]) -> float:
    return sum(slot.height for slot in column) + _GAP_Y * max(len(column) - 1, 0)


def _height(box: Box) -> float:
    return 2 * _PADDING + _LINE * (len(box.lines) + bool(box.note))


def _width(box: Box) -> float:
    longest = max([len(_cut(line)) for line in box.lines] + [len(_cut(box.note))])
    return round(2 * _PADDING + longest * _CHARACTER)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST_LINE else text[: _LONGEST_LINE - 1] + "…"


# -- parts


def _box(slot: _Slot, box: Box) -> list[str]:
    top, left = slot.y - slot.height / 2, slot.left + _PADDING
    size = f'x="{slot.left:g}" y="{top:g}" width="{slot.width:g}" height="{slot.height:g}"'
    texts = [(line, "tg-text") for line in box.lines] + ([(box.note, "tg-text tg-note")] if box.note else [])
    return [
        f"<g><title>{escape(', '.join(box.lines))}</title>",
        f'<rect class="tg-box" {size} rx="6"/>',
        *(
            f'<text class="{style}" x="{left:g}" y="{top + _PADDING + 13 + _LINE * n:g}">{escape(_cut(text))}</text>'
            for n, (text, style) in enumerate(texts)
        ),
        "</g>",
    ]


def _arrow(arrow: Arrow, path: list[_Slot]) -> list[str]:
    points = [(path[0].left + path[0].width, path[0].y)]
    for slot in path[1:-1]:
        points += [(slot.left, slot.y), (slot.left + slot.width, slot.y)]
    points.append((path[-1].left - 2, path[-1].y))
    way = f"M{points[0][0]:g},{points[0][1]:g}"
    for n, ((x1, y1), (x2, y2)) in enumerate(pairwise(points)):
        middle = (x1 + x2) / 2
        way += f" L{x2:g},{y2:g}" if n % 2 else f" C{middle:g},{y1:g} {middle:g},{y2:g} {x2:g},{y2:g}"
    parts = [f'<path class="tg-line" d="{way}" stroke-width="1.4" marker-end="url(#tg-tip)"/>']
    if arrow.text:
        (x1, y1), (x2, y2) = points[0], points[1]
        place = f'x="{(x1 + x2) / 2:g}" y="{(y1 + y2) / 2 - 6:g}" text-anchor="middle"'
        parts.append(f'<text class="tg-text tg-note" {place}>{escape(_cut(arrow.text))}</text>')
    return parts

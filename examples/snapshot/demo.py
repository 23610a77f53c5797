"""Why barriers: three operators, a snapshot, a crash. Taken operator by operator the numbers are wrong; cut by a barrier, right.

python examples/snapshot/demo.py [SVG]      (make demo-snapshot)

A model in one process, so that every step can be seen: a source sends the numbers 1 to 12, one operator counts them, the next one
adds them up, with a queue in between. Each does one step at a time while the snapshot is taken.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

LAST = 12
RIGHT = (LAST, LAST * (LAST + 1) // 2)
BARRIER = 0
"""Travels between the records, and is none: the numbers begin at 1."""

Snapshot = dict[str, int]


@dataclass
class Pipeline:
    """source -> count -> total. ``sent``, ``counted``, ``added`` are the states; what is in the queues is in no state."""

    sent: int = 0
    counted: int = 0
    added: int = 0
    to_count: deque[int] = field(default_factory=deque)
    to_total: deque[int] = field(default_factory=deque)
    done: dict[str, list[int]] = field(default_factory=lambda: {"source": [], "count": [], "total": []})
    snapshot: Snapshot = field(default_factory=dict)
    cut: dict[str, int] = field(default_factory=dict)
    """How many records an operator had processed when its state was copied."""

    def step_source(self) -> None:
        if self.sent < LAST:
            self.sent += 1
            self.done["source"].append(self.sent)
            self.to_count.append(self.sent)

    def step_count(self) -> None:
        if self.to_count:
            number = self.to_count.popleft()
            if number == BARRIER:
                self.copy("count")
            else:
                self.counted += 1
                self.done["count"].append(number)
            self.to_total.append(number)

    def step_total(self) -> None:
        if self.to_total:
            number = self.to_total.popleft()
            if number == BARRIER:
                self.copy("total")
            else:
                self.added += number
                self.done["total"].append(number)

    def copy(self, operator: str) -> None:
        self.snapshot[operator] = {"source": self.sent, "count": self.counted, "total": self.added}[operator]
        self.cut[operator] = len(self.done[operator])

    def step(self) -> None:
        self.step_total()
        self.step_count()
        self.step_source()

    def barrier(self) -> None:
        """The source copies its state and sends the barrier after the records that it has sent."""
        self.copy("source")
        self.to_count.append(BARRIER)

    @staticmethod
    def restored(snapshot: Snapshot) -> Pipeline:
        """After the crash: the states of the snapshot, empty queues; the source sends the records after its own state."""
        return Pipeline(snapshot["source"], snapshot["count"], snapshot["total"])

    def finish(self) -> tuple[int, int]:
        while self.sent < LAST or self.to_count or self.to_total:
            self.step()
        return self.counted, self.added


NAIVE = {4: "count", 6: "source", 10: "total"}
"""Step -> the operator whose state is copied then: whenever somebody came by."""


def naive() -> Pipeline:
    pipeline = Pipeline()
    for number in range(1, 12):
        pipeline.step()
        if number in NAIVE:
            pipeline.copy(NAIVE[number])
    return pipeline


def with_barriers() -> Pipeline:
    pipeline = Pipeline()
    for number in range(1, 12):
        pipeline.step()
        if number == 6:
            pipeline.barrier()
    return pipeline


def fate(crashed: Pipeline, operator: str, number: int) -> str:
    """Of a number at an operator, over both lives: once, never (lost), or twice."""
    before = number <= crashed.cut[operator]
    again = number > crashed.cut["source"]
    return "twice" if before and again else "lost" if not before and not again else "once"


# -- pictures ------------------------------------------------------------------------------------------------------------

_MARKS = {"once": " ", "lost": "-", "twice": "+"}
_COLOURS = {"once": "#9bc8a5", "lost": "#ffffff", "twice": "#e88b7d"}


def picture(title: str, crashed: Pipeline) -> Iterator[str]:
    """The numbers at each operator; a bar where its state was copied; - lost and + twice, when it has been restored."""
    counted, added = Pipeline.restored(crashed.snapshot).finish()
    yield title
    for operator in crashed.done:
        cells = [f"{number:>2}{_MARKS[fate(crashed, operator, number)]}" for number in range(1, LAST + 1)]
        cut = crashed.cut[operator]
        yield f"  {operator:<7}" + " ".join([*cells[:cut], "|", *cells[cut:]])
    verdict = "right" if (counted, added) == RIGHT else f"WRONG, it is {RIGHT[0]} and {RIGHT[1]}"
    yield f"  {why(crashed)}"
    yield f"  In the end: {counted} numbers, total {added}: {verdict}"


def why(crashed: Pipeline) -> str:
    """In words what the restore does to the numbers."""
    wrong = {"lost": "{} never gets {}", "twice": "{} gets {} again"}
    said = []
    for operator in crashed.done:
        for what, text in wrong.items():
            numbers = [str(n) for n in range(1, LAST + 1) if fate(crashed, operator, n) == what]
            if numbers:
                said.append(text.format(operator, " ".join(numbers)))
    follows = "; ".join(said) or "so do all operators"
    return f"The source continues with {crashed.cut['source'] + 1}: {follows}."


def svg() -> str:
    """Both pictures."""
    parts = [
        '<svg xmlns="http://www.w3.org/2000/svg" width="640" height="420" font-family="sans-serif" font-size="13">',
        '<rect width="640" height="420" fill="#ffffff"/>',
        '<text x="20" y="24">The numbers 1 to 12 go from the source to count, and on to total. Snapshot, crash, restore.</text>',
    ]
    rows = (
        ("Without barriers: each state is copied when somebody comes by", naive()),
        ("With a barrier after 6: each state is copied as the barrier passes", with_barriers()),
    )
    for place, (title, crashed) in enumerate(rows):
        parts += _svg_picture(title, crashed, 60 + place * 170)
    parts += _svg_legend(402)
    return "\n".join([*parts, "</svg>", ""])


def _svg_picture(title: str, crashed: Pipeline, top: int) -> Iterator[str]:
    counted, added = Pipeline.restored(crashed.snapshot).finish()
    verdict = "right" if (counted, added) == RIGHT else f"wrong: {RIGHT[0]} and {RIGHT[1]} would be right"
    yield f'<text x="20" y="{top}" font-weight="bold">{title}</text>'
    for row, operator in enumerate(crashed.done):
        y = top + 12 + row * 30
        yield f'<text x="20" y="{y + 16}">{operator}</text>'
        for number in range(1, LAST + 1):
            x, colour = 80 + (number - 1) * 42, _COLOURS[fate(crashed, operator, number)]
            yield f'<rect x="{x}" y="{y}" width="34" height="22" rx="4" fill="{colour}" stroke="#555555"/>'
            yield f'<text x="{x + 17}" y="{y + 16}" text-anchor="middle">{number}</text>'
        x = 80 + crashed.cut[operator] * 42 - 4
        yield f'<line x1="{x}" y1="{y - 3}" x2="{x}" y2="{y + 25}" stroke="#1b4f9c" stroke-width="3"/>'
    yield f'<text x="80" y="{top + 120}">{why(crashed)}</text>'
    yield f'<text x="80" y="{top + 138}" font-weight="bold">In the end: {counted} numbers, total {added}: {verdict}</text>'


def _svg_legend(y: int) -> Iterator[str]:
    yield f'<line x1="24" y1="{y - 13}" x2="24" y2="{y + 3}" stroke="#1b4f9c" stroke-width="3"/>'
    yield f'<text x="32" y="{y}" fill="#555555">state copied here</text>'
    for x, (text, colour) in zip(
        (180, 310, 400), zip(("counts once", "lost", "counts twice"), _COLOURS.values(), strict=True), strict=True
    ):
        yield f'<rect x="{x}" y="{y - 12}" width="20" height="14" rx="3" fill="{colour}" stroke="#555555"/>'
        yield f'<text x="{x + 26}" y="{y}" fill="#555555">{text}</text>'


def main() -> None:
    if len(sys.argv) > 1:
        with open(sys.argv[1], "w") as stream:
            stream.write(svg())
        return
    print(f"A source sends the numbers 1 to {LAST}. count counts them and hands them on,")
    print("total adds them up. Meanwhile a snapshot is taken; all crash, and continue from it.")
    print("  | state copied here    - lost by the restore    + counted twice\n")
    print("\n".join(picture("Without barriers: each state is copied when somebody comes by", naive())))
    print()
    print("\n".join(picture("With a barrier after 6: each state is copied as the barrier passes", with_barriers())))


if __name__ == "__main__":
    main()

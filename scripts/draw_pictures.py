"""Draws the pictures of the docs into docs/pictures: ``python scripts/draw_pictures.py [--check]``.

Each picture has its own panel and colours for light and dark pages. ``kill-and-recovery.svg`` shows a real run of the demo, as
``python examples/demo/demo.py --record examples/demo/recorded.json`` has written it down. ``speed.svg`` shows ``bench/results``.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from html import escape
from itertools import pairwise
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "pictures"
RESULTS = ROOT / "bench" / "results"
RECORDED = ROOT / "examples" / "demo" / "recorded.json"
STYLE = """\
text { font: 13px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1d2b33 }
.small { font-size: 11.5px; fill: #51636d } .bold { font-weight: 600 } .middle { text-anchor: middle } .end { text-anchor: end }
.panel { fill: #f6f9fa; stroke: #cfdadf } .box { fill: #ffffff; stroke: #5b7682 } .soft { fill: #dff1ee; stroke: #2f8f83 }
.old { fill: #e6eaec; stroke: #93a3ab } .warm { fill: #fdeccf; stroke: #c98a1c } .line { stroke: #5b7682; fill: none }
.axis { stroke: #b8c6cc } .good { stroke: #14796c; fill: none } .fill { fill: #14796c } .bad { stroke: #c22f2f; fill: none }
.alarm { fill: #c22f2f } .okay { fill: #14796c } .tip { fill: #5b7682 } .bar { stroke: #c22f2f; stroke-width: 3 }
.cover { fill: #f6f9fa }
@media (prefers-color-scheme: dark) {
text { fill: #e3ecef } .small { fill: #a9bac2 }
.panel { fill: #18232a; stroke: #33454e } .box { fill: #22323b; stroke: #86a1ad } .soft { fill: #1d4742; stroke: #57bdb0 }
.old { fill: #2b373d; stroke: #6b7d86 } .warm { fill: #4d3b1a; stroke: #dca540 } .line { stroke: #86a1ad }
.axis { stroke: #40545e } .good { stroke: #57bdb0 } .fill { fill: #57bdb0 } .bad { stroke: #ff7b72 }
.alarm { fill: #ff7b72 } .okay { fill: #57bdb0 } .tip { fill: #86a1ad } .bar { stroke: #ff7b72 } .cover { fill: #18232a }
}
"""


class Picture:
    """The parts of one drawing, from the back to the front."""

    def __init__(self, width: int, height: int, title: str) -> None:
        self.width, self.height, self.title = width, height, title
        self.parts = [f'<rect class="panel" x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="10"/>']

    def text(self, x: float, y: float, text: str, style: str = "") -> None:
        self.parts.append(f'<text x="{x:g}" y="{y:g}" class="{style}">{escape(text)}</text>')

    def box(self, x: float, y: float, width: float, height: float, *lines: str, style: str = "box") -> None:
        """A box with centred lines; the first one is bold if there are several."""
        self.parts.append(f'<rect class="{style}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        top = y + height / 2 + 4.5 - 8 * (len(lines) - 1)
        for number, line in enumerate(lines):
            look = "bold" if number == 0 and len(lines) > 1 else "" if len(lines) == 1 else "small"
            self.text(x + width / 2, top + 16 * number, line, f"middle {look}")

    def arrow(self, x1: float, y1: float, x2: float, y2: float, text: str = "", *, style: str = "line") -> None:
        """A straight line with a tip. Its text stands above the middle."""
        self.parts.append(
            f'<line class="{style}" x1="{x1:g}" y1="{y1:g}" x2="{x2:g}" y2="{y2:g}" stroke-width="1.6" marker-end="url(#tip)"/>'
        )
        if text:
            self.text((x1 + x2) / 2, (y1 + y2) / 2 - 6, text, "small middle")

    def line(self, points: list[tuple[float, float]], style: str, width: float = 1.0, dash: str = "") -> None:
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        dashed = f' stroke-dasharray="{dash}"' if dash else ""
        self.parts.append(f'<polyline class="{style}" points="{path}" stroke-width="{width:g}"{dashed} fill="none"/>')

    def raw(self, part: str) -> None:
        self.parts.append(part)

    def drawn(self, style: str = "") -> str:
        size = f'width="{self.width}" height="{self.height}" viewBox="0 0 {self.width} {self.height}"'
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" '
            'orient="auto-start-reverse">'
            '<path class="tip" d="M0,0 L8,4 L0,8 z"/></marker></defs>'
        )
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">\n<title>{escape(self.title)}</title>'
        return "\n".join([head, f"<style>\n{STYLE}{style}</style>", tip, *self.parts, "</svg>\n"])


# -- a run of the demo


def kill_and_recovery() -> str:
    """Committed orders over the time of a recorded run. The curtain that opens is decoration: without it the picture is whole."""
    run = json.loads(RECORDED.read_text())
    samples: list[tuple[float, str, int]] = run["samples"]
    orders, last = run["orders"], samples[-1][0]
    picture = Picture(820, 330, "A job is killed twice in the middle of a checkpoint, and its output is complete")
    left, right, top, bottom = 66, 800, 66, 272

    def x(seconds: float) -> float:
        return round(left + (right - left) * seconds / last, 1)

    def y(count: int) -> float:
        return round(bottom - (bottom - top) * count / orders, 1)

    picture.text(18, 28, "Orders that a reader of the output sees, in one run of make demo", "bold")
    for share in (0, 0.5, 1):
        picture.line([(left, y(round(orders * share))), (right, y(round(orders * share)))], "axis")
        picture.text(left - 8, y(round(orders * share)) + 4, f"{orders * share:,.0f}", "small end")
    for seconds in range(0, int(last) + 1, 5):
        picture.text(x(seconds), bottom + 18, f"{seconds} s", "small middle")
    for begin, end in _down(samples):
        picture.raw(
            f'<rect class="old" stroke="none" x="{x(begin):g}" y="{top}" width="{x(end) - x(begin):g}" height="{bottom - top}"/>'
        )
        picture.text((x(begin) + x(end)) / 2, bottom - 8, "starts", "small middle")
    steps = [(x(samples[0][0]), y(0))]
    for (_, _, before), (seconds, _, after) in pairwise(samples):
        steps += [(x(seconds), y(before)), (x(seconds), y(after))]
    picture.line(steps, "good", 2.5)
    for number, (seconds, met) in enumerate(run["killed"]):
        here = x(seconds)
        picture.line([(here, top - 4), (here, bottom)], "bad", 1.8, "5 3")
        picture.text(here + 6, top + 8, "kill -9", "bold alarm")
        for row, line in enumerate(met.split(", ")):
            picture.text(here + 6, top + 25 + 15 * row, line, "small")
        _, checkpoint = run["continued"][number]
        picture.text(here + 6, top + 62, f"continues from {checkpoint}", "small okay")
    picture.raw(f'<svg x="{left - 2}" y="{top - 14}" width="{right - left + 12}" height="{bottom - top + 14}">')
    picture.raw(
        f'<rect class="cover curtain" x="0" y="0" width="{right - left + 12}" height="{bottom - top + 14}"/></svg>'
    )
    verdict = f"An independent reader then counts: {orders:,} orders, lost {run['lost']}, doubled {run['doubled']}."
    picture.text(18, 314, verdict, "bold okay")
    motion = (
        ".curtain { transform: translateX(100%) }\n"
        "@keyframes open { from { transform: translateX(0) } 70%, to { transform: translateX(100%) } }\n"
        "@media (prefers-reduced-motion: no-preference) { .curtain { animation: open 14s linear infinite } }\n"
    )
    return picture.drawn(motion)


def _down(samples: list[tuple[float, str, int]]) -> list[tuple[float, float]]:
    """The spans in which the job starts."""
    spans: list[tuple[float, float]] = []
    begin: float | None = None
    for seconds, status, _ in samples:
        if status.endswith(("starts", "start")):
            begin = seconds if begin is None else begin
        elif begin is not None:
            spans.append((begin, seconds))
            begin = None
    return spans


# -- results of the benchmarks

SPEED = {
    "keyed-count": "keyed count, 20,000 keys",
    "keyed-count-1m": "keyed count, 1,000,000 keys",
    "window-count": "tumbling window count by text",
    "interval-join": "interval join",
}
"""Scenario of bench/run.py -> what it does."""
ENGINES = {
    "tidegate": "Tidegate",
    "flink-java": "Flink in Java",
    "pyflink-thread": "PyFlink, thread mode",
    "pyspark-tws": "PySpark transformWithState",
}


def speed() -> str:
    """Records a second as bars on one scale from 0: what is small looks small."""
    results = {name: json.loads((RESULTS / f"{name}.json").read_text())["steady"] for name in SPEED}
    rows = sum(len(steady) for steady in results.values())
    picture = Picture(820, 62 + 22 * rows + 34 * len(results), "Records a second of Tidegate, Flink and PySpark")
    picture.text(18, 28, "Records a second, with a checkpoint every second, on 2 cores", "bold")
    top = max(value for steady in results.values() for value in steady.values())
    y = 60.0
    for name, steady in results.items():
        picture.text(18, y, SPEED[name], "bold")
        y += 12
        for engine in (engine for engine in ENGINES if engine in steady):
            width = max(round(460 * steady[engine] / top, 1), 1)
            picture.text(210, y + 13, ENGINES[engine], "small end")
            style = "soft" if engine == "tidegate" else "old"
            picture.raw(f'<rect class="{style}" x="220" y="{y:g}" width="{width:g}" height="17" rx="3"/>')
            picture.text(226 + width, y + 13, f"{steady[engine]:,}", "small")
            y += 22
        y += 22
    return picture.drawn()


SCALE = {
    ("driver", 2): ("driver, 2 levels", "good", ""),
    ("driver", 8): ("driver, 8 levels", "good", "5 4"),
    ("tasks-shared", 2): ("tasks, 4 a level", "line", ""),
    ("tasks-of-their-own", 2): ("tasks, one for each subtask", "line", "5 4"),
    ("spark", 2): ("everything, on Spark, 2 cores", "bad", ""),
}
"""Part and levels of bench/scale.py -> the curve's name and style."""


def scale() -> str:
    """Processor time for a subtask and round; both axes are logarithmic."""
    parts = json.loads((RESULTS / "scale.json").read_text())["parts"]
    picture = Picture(820, 400, "Processor time for a subtask and round, by the number of subtasks of a level")
    picture.text(
        18, 28, "Processor time for one subtask and round, in milliseconds, by the subtasks of a level", "bold"
    )

    def at(subtasks: float, cost: float) -> tuple[float, float]:
        return round(70 + 48 * math.log2(subtasks), 1), round(350 - 90 * math.log10(cost / 0.02), 1)

    for subtasks in (2, 8, 32, 128, 512, 2048):
        x, bottom = at(subtasks, 0.02)
        picture.line([(x, 52), (x, bottom)], "axis")
        picture.text(x, bottom + 20, f"{subtasks:,}", "small middle")
    for cost in (0.02, 0.1, 1, 10):
        left, y = at(2, cost)
        picture.line([(left, y), (at(2048, cost)[0], y)], "axis")
        picture.text(left - 8, y + 4, f"{cost:g}", "small end")
    for (part, levels), (name, style, dash) in SCALE.items():
        points = [p for p in parts.get(part, {"points": []})["points"] if p["levels"] == levels]
        places = [at(p["subtasks"], p["ms_a_subtask"]) for p in points]
        if places:
            picture.line(places, style, 2, dash)
            picture.text(places[-1][0] + 8, places[-1][1] + 4, name, "small")
    return picture.drawn()


# -- how it works


def architecture() -> str:
    picture = Picture(820, 360, "The parts of a running job")
    picture.box(20, 24, 180, 70, "your program", "a graph; nothing runs", "before execute()")
    picture.arrow(110, 94, 110, 132)
    picture.box(20, 134, 180, 196, style="soft")
    picture.text(110, 158, "driver", "bold middle")
    for row, line in enumerate(
        [
            "plans rounds",
            "accepts or discards them",
            "publishes checkpoints",
            "commits sinks",
            "restores after failures",
            "takes commands",
        ]
    ):
        picture.text(110, 184 + 24 * row, line, "small middle")
    picture.arrow(202, 180, 286, 180, "round n")
    picture.arrow(286, 232, 202, 232, "acks")
    picture.box(288, 24, 330, 306, style="box")
    picture.text(453, 48, "Apache Spark: one job a round", "bold middle")
    for row in range(2):
        top = 70 + row * 118
        picture.box(304, top, 122, 90, "source, map", "one generated", "Python loop", style="soft")
        picture.box(480, top, 122, 90, "state, sink", "local store", "of the host", style="soft")
    for start in range(2):
        for end in range(2):
            picture.arrow(426, 115 + start * 118, 478, 115 + end * 118)
    picture.text(453, 306, "chunks of records, then one barrier a channel", "small middle")
    picture.box(690, 70, 112, 90, "storage", "chk-n/_metadata", "shared/ segments", style="warm")
    picture.box(690, 216, 112, 76, "output", "files, Kafka,", "databases", style="warm")
    picture.arrow(602, 104, 688, 104, "segments")
    picture.arrow(602, 240, 688, 240, "prepared")
    picture.line([(110, 330), (110, 346), (746, 346)], "line", 1.6)
    picture.arrow(746, 346, 746, 294)
    picture.text(640, 340, "7 publish, then 8 commit", "small middle")
    return picture.drawn()


def a_round() -> str:
    picture = Picture(820, 300, "The nine steps of a checkpoint around one round")
    picture.text(
        20, 28, "One round is one Spark job. A checkpoint is an accepted round whose metadata is published.", "bold"
    )
    steps = [
        ("1 trigger", "an id that was", "never used"),
        ("2 cut", "where each source", "stops in this round"),
        ("3 run", "tasks read, process,", "write prepared output"),
        ("4 align", "one barrier from", "every channel"),
        ("5 snapshot", "changes of state", "are durable"),
        ("6 acknowledge", "the driver accepts", "all acks, or none"),
        ("7 complete", "_metadata appears", "in one step"),
        ("8 commit", "sinks make their", "output visible"),
        ("9 subsume", "older checkpoints", "are deleted"),
    ]
    for number, (name, *lines) in enumerate(steps):
        row, column = divmod(number, 5)
        style = "warm" if number == 6 else "soft" if 2 <= number <= 4 else "box"
        picture.box(20 + column * 158, 56 + row * 112, 140, 72, name, *lines, style=style)
        if column < 4 and number < 8:
            picture.arrow(162 + column * 158, 92 + row * 112, 176 + column * 158, 92 + row * 112)
    picture.line([(722, 128), (722, 148), (90, 148)], "line", 1.6)
    picture.arrow(90, 148, 90, 166)
    picture.text(
        20, 268, "A failure before 7: the checkpoint never happened, and the restart reads its records again.", "small"
    )
    picture.text(
        20,
        286,
        "A failure after 7: the restart commits its output again, which has no effect where the commit was done.",
        "small",
    )
    for row, (style, where) in enumerate(
        [("box", "in the driver"), ("soft", "in Spark's tasks"), ("warm", "the commit point")]
    ):
        picture.raw(f'<rect class="{style}" x="662" y="{174 + 22 * row}" width="16" height="13" rx="2"/>')
        picture.text(686, 185 + 22 * row, where, "small")
    return picture.drawn()


def barriers() -> str:
    picture = Picture(820, 300, "A barrier cuts all streams at one point")
    picture.text(
        20,
        28,
        "Records of round 7 (green) and of round 8 (white). The barrier stands between them on every channel.",
        "bold",
    )
    for row, (name, before) in enumerate([("source 1", 4), ("source 2", 2)]):
        y = 60 + row * 96
        picture.box(20, y, 92, 48, name)
        picture.arrow(114, y + 24, 520, y + 24)
        for slot in range(8):
            x = 470 - slot * 44
            if slot == before:
                picture.line([(x + 14, y + 6), (x + 14, y + 42)], "bar", 3)
                continue
            style = "soft" if slot < before else "box"
            picture.raw(f'<rect class="{style}" x="{x}" y="{y + 13}" width="30" height="22" rx="4"/>')
    picture.box(524, 52, 132, 160, "subtask", "stops at the first", "barrier, reads the", "other channels", "to theirs")
    picture.arrow(658, 132, 700, 132)
    picture.box(702, 84, 100, 96, "snapshot", "exactly the", "green records", style="warm")
    picture.text(
        20,
        252,
        "The state of all operators, the positions of the sources and the prepared output belong to the same records.",
        "small",
    )
    picture.text(
        20,
        274,
        "Copied at different moments, they would not: some records would be lost, and others would count twice.",
        "small",
    )
    return picture.drawn()


def windows() -> str:
    picture = Picture(820, 390, "Tumbling, sliding and session windows over the same records")
    times = [4, 7, 9, 16, 19, 33, 36, 38, 52]
    left, right = 150, 790

    def x(second: float) -> float:
        return left + (right - left) * second / 60

    picture.text(20, 46, "records", "bold")
    picture.line([(left, 48), (right, 48)], "axis")
    for time in times:
        picture.raw(f'<circle class="fill" cx="{x(time):g}" cy="42" r="6"/>')
    for second in range(0, 61, 10):
        picture.text(x(second), 70, f"{second} s", "small middle")
    picture.text(20, 108, "tumbling, 20 s", "bold")
    for begin in (0, 20, 40):
        count = sum(begin <= time < begin + 20 for time in times)
        picture.box(
            x(begin) + 2, 88, x(20) - x(0) - 4, 32, f"{count} records" if count > 1 else "1 record", style="soft"
        )
    picture.text(20, 168, "sliding, 20 s", "bold")
    picture.text(20, 184, "every 10 s", "small")
    for number, begin in enumerate((0, 10, 20, 30, 40)):
        count = sum(begin <= time < begin + 20 for time in times)
        picture.box(x(begin) + 2, 146 + (number % 2) * 38, x(20) - x(0) - 4, 32, f"{count}", style="soft")
    picture.text(20, 258, "session, gap 8 s", "bold")
    session = [times[0]]
    for time in [*times[1:], 999]:
        if time - session[-1] < 8:
            session.append(time)
            continue
        picture.box(x(session[0]), 238, x(session[-1] + 8) - x(session[0]), 32, f"{len(session)}", style="soft")
        session = [time]
    picture.text(20, 318, "watermark", "bold")
    picture.arrow(left, 314, x(42), 314, style="good")
    picture.line([(x(42), 84), (x(42), 330)], "bad", 1.5, "5 3")
    picture.text(x(42) + 8, 318, "42 s: nothing earlier is expected", "small")
    picture.text(
        20,
        352,
        "A window fires when the watermark passes its end. A record before the watermark is late for windows that have fired:",
        "small",
    )
    picture.text(
        20,
        370,
        "allowed lateness lets it fire the window again, a side output keeps it, and without both it is discarded.",
        "small",
    )
    return picture.drawn()


def rescaling() -> str:
    picture = Picture(820, 330, "Key groups move to other subtasks without new files")
    picture.text(
        20,
        28,
        "Keys belong to key groups (here 8). A subtask owns a range of groups. A rescale changes the ranges only.",
        "bold",
    )
    _subtasks(picture, 56, 2, "parallelism 2")
    for group in range(8):
        picture.arrow(166 + group * 80, 132, 166 + group * 80, 168)
    for group in range(8):
        picture.box(132 + group * 80, 170, 68, 34, f"group {group}", style="warm")
        picture.arrow(166 + group * 80, 206, 166 + group * 80, 240)
    _subtasks(picture, 242, 4, "parallelism 4")
    return picture.drawn()


def _subtasks(picture: Picture, y: float, parallelism: int, name: str) -> None:
    picture.text(20, y + 42, name, "bold small")
    width = 640 / parallelism
    for subtask in range(parallelism):
        first, last = subtask * 8 // parallelism, (subtask + 1) * 8 // parallelism - 1
        lines = (f"subtask {subtask + 1}", f"groups {first} to {last}")
        picture.box(128 + subtask * width, y, width - 8, 74, *lines, style="soft")


def recovery() -> str:
    picture = Picture(820, 330, "What a restart does with a checkpoint")
    picture.text(20, 28, "Rounds 1 to 6, with checkpoints 3 and 4. The driver dies in round 6.", "bold")
    for number in range(6):
        style = "old" if number >= 4 else "soft"
        picture.box(20 + number * 100, 48, 90, 40, f"round {number + 1}", style=style)
    picture.line([(614, 40), (614, 96)], "bar", 3)
    picture.text(624, 72, "driver dies", "bold alarm")
    picture.box(120, 116, 90, 40, "chk-3", style="warm")
    picture.box(320, 116, 90, 40, "chk-4", style="warm")
    picture.arrow(165, 88, 165, 114)
    picture.arrow(365, 88, 365, 114)
    steps = [
        ("claim the lease", "a higher token fences", "the old driver off"),
        ("read chk-4", "positions, files of state,", "prepared output"),
        ("commit it again", "no effect where", "it was done"),
        ("abort the rest", "output prepared by", "rounds 5 and 6"),
        ("continue", "round 5 is read again", "from the sources"),
    ]
    for number, (name, *lines) in enumerate(steps):
        picture.box(20 + number * 158, 190, 146, 74, name, *lines, style="box" if number < 4 else "soft")
        if number < 4:
            picture.arrow(166 + number * 158, 227, 177 + number * 158, 227)
    picture.arrow(365, 156, 280, 188)
    picture.text(
        20,
        294,
        "What was committed stays as it is. What was not is computed again from the same records, with the same state.",
        "small",
    )
    picture.text(20, 312, "So the committed output equals that of a run without the failure.", "small")
    return picture.drawn()


PICTURES: dict[str, Callable[[], str]] = {
    "architecture": architecture,
    "barriers": barriers,
    "kill-and-recovery": kill_and_recovery,
    "recovery": recovery,
    "rescaling": rescaling,
    "round": a_round,
    "scale": scale,
    "speed": speed,
    "windows": windows,
}


def main() -> int:
    drawn = {FOLDER / f"{name}.svg": draw() for name, draw in PICTURES.items()}
    if "--check" in sys.argv:
        old = [path.name for path, text in drawn.items() if not path.exists() or path.read_text() != text]
        print(f"run: python scripts/draw_pictures.py ({', '.join(old)})" if old else "docs/pictures is current")
        return 1 if old else 0
    FOLDER.mkdir(exist_ok=True)
    for path, text in drawn.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The drawing of a graph: all boxes and arrows are there, nothing overlaps, arrows go to the right, texts are escaped."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from itertools import combinations
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.executor import Simulated
from tidegate.common import Types
from tidegate.datastream import OutputTag, ProcessFunction
from tidegate.graph.drawing import Arrow, Box, drawn, of_graph
from tidegate.graph.plan import build

SVG = "{http://www.w3.org/2000/svg}"
EVIL = "<script>alert(1)</script>\"'&"


def parsed(text: str) -> ET.Element:
    return ET.fromstring(text)  # noqa: S314 - our own text


def rectangles(root: ET.Element) -> list[tuple[float, float, float, float]]:
    names = ("x", "y", "width", "height")
    found = [rect for rect in root.iter(f"{SVG}rect") if rect.get("class") == "tg-box"]
    return [tuple(float(rect.get(name, "0")) for name in names) for rect in found]  # type: ignore[misc]


@st.composite
def graphs(draw: st.DrawFn) -> tuple[list[Box], list[Arrow]]:
    size = draw(st.integers(1, 12))
    boxes = [Box(n, tuple(draw(st.lists(st.text(max_size=60), min_size=1, max_size=4))), "note") for n in range(size)]
    pairs = [(a, b) for a, b in combinations(range(size), 2)]
    chosen = draw(st.lists(st.sampled_from(pairs), unique=True, max_size=20)) if pairs else []
    return boxes, [Arrow(a, b, "hash") for a, b in chosen]


@settings(max_examples=60)
@given(graphs())
def test_any_graph_has_all_its_parts_inside_and_apart(graph: tuple[list[Box], list[Arrow]]) -> None:
    boxes, arrows = graph
    printable = [
        Box(b.id, tuple("".join(c for c in line if c.isprintable()) for line in b.lines), b.note) for b in boxes
    ]
    root = parsed(drawn("any", printable, arrows))
    places = rectangles(root)
    assert len(places) == len(boxes)
    for (x1, y1, w1, h1), (x2, y2, w2, h2) in combinations(places, 2):
        assert x1 + w1 <= x2 or x2 + w2 <= x1 or y1 + h1 <= y2 or y2 + h2 <= y1, "two boxes overlap"
    width, height = float(root.get("width", "0")), float(root.get("height", "0"))
    assert all(x >= 0 and y >= 0 and x + w <= width and y + h <= height for x, y, w, h in places)
    paths = [path for path in root.iter(f"{SVG}path") if path.get("class") == "tg-line"]
    assert len(paths) == len(arrows)
    for path in paths:
        words = path.get("d", "").replace("M", "").split()
        assert float(words[0].split(",")[0]) < float(words[-1].split(",")[0]), "an arrow goes to the left"


def test_an_arrow_that_skips_a_column_passes_no_box() -> None:
    boxes = [Box(n, (f"box {n}",)) for n in range(3)]
    root = parsed(drawn("skip", boxes, [Arrow(0, 1), Arrow(1, 2), Arrow(0, 2)]))
    (middle,) = [place for place in rectangles(root) if place[0] == sorted(rectangles(root))[1][0]]
    skipping = next(path.get("d", "") for path in root.iter(f"{SVG}path") if " L" in path.get("d", ""))
    y = float(skipping.split(" L")[1].split()[0].split(",")[1])
    assert not middle[1] <= y <= middle[1] + middle[3]


def test_texts_of_strangers_are_escaped_and_long_ones_cut() -> None:
    text = drawn(EVIL, [Box(1, (EVIL, "x" * 500), EVIL), Box(2, ("b",))], [Arrow(1, 2, EVIL)])
    assert (
        "<script" not in text
        and "x" * 60 not in text.replace(f"{EVIL}, ", "").partition("<rect")[2].partition("</title>")[2]
    )
    assert EVIL in "".join(parsed(text).itertext())


def test_an_empty_graph_and_a_circle_are_drawn() -> None:
    assert parsed(drawn("none", [], [])).tag == f"{SVG}svg"
    assert len(rectangles(parsed(drawn("circle", [Box(1, ("a",)), Box(2, ("b",))], [Arrow(1, 2), Arrow(2, 1)])))) == 2


class Split(ProcessFunction):
    def process_element(self, value: Any, ctx: Any) -> Any:
        yield value


def test_a_program_is_drawn_with_its_chains_and_how_records_travel(simulated: Simulated) -> None:
    env = simulated()
    late = OutputTag("late", Types.LONG())
    numbers = env.from_collection([1, 2], Types.LONG()).process(Split(), Types.LONG())
    numbers.key_by(lambda n: n).map(lambda n: n).name("count").print()
    numbers.get_side_output(late).broadcast().map(lambda n: n).name("seen").print()
    program = env._program("two ways")
    text = of_graph(build(program, 2, 128, {}))
    shown = "\n".join(parsed(text).itertext())
    assert "two ways" in shown and "count" in shown and "seen" in shown
    assert "hash" in shown and "broadcast, late" in shown and "parallelism" in shown
    assert env._repr_html_().startswith("<svg") and "hash" in env._repr_html_()


def test_an_environment_without_a_program_or_with_a_wrong_one_says_so(simulated: Simulated) -> None:
    env = simulated()
    assert "without a program" in env._repr_html_()
    numbers = env.from_collection([1], Types.LONG())
    numbers.map(lambda n: n).uid("<same>").print()
    numbers.map(lambda n: n).uid("<same>").print()
    assert env._repr_html_().startswith("<pre>") and "&lt;same&gt;" in env._repr_html_()

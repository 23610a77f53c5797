"""Kinds of operators: nobody but the registry asks which kind one is, so that a new one is a file and a line."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.graph.transformation import OperatorSpec
from tidegate.operators.contracts.operator import StreamOperator
from tidegate.operators.kinds.registry import KINDS

SOURCE = Path(__file__).parents[2] / "src" / "tidegate"
REGISTRY = SOURCE / "operators" / "kinds" / "registry.py"


def _last_name(node: ast.AST) -> str:
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def _names_spec(node: ast.AST) -> bool:
    """Whether a class of a spec stands in the expression."""
    return any(_last_name(part).endswith("Spec") for part in ast.walk(node))


def _calls(node: ast.AST, *names: str) -> bool:
    return isinstance(node, ast.Call) and _last_name(node.func) in names


def questions(tree: ast.AST) -> Iterator[int]:
    """Lines that ask which kind of spec something is."""
    for node in ast.walk(tree):
        if (
            (isinstance(node, ast.Call) and _calls(node, "isinstance", "issubclass") and _names_spec(node.args[1]))
            or (isinstance(node, ast.Call) and _calls(node, "type") and "spec" in _last_name(node.args[0]).lower())
            or (isinstance(node, ast.Attribute) and node.attr == "__class__" and "spec" in _last_name(node.value))
            or (isinstance(node, ast.MatchClass) and _names_spec(node.cls))
            or (isinstance(node, ast.Compare) and any(map(_names_spec, [node.left, *node.comparators])))
            or (isinstance(node, ast.Dict) and any(key is not None and _names_spec(key) for key in node.keys))
            or (isinstance(node, ast.Attribute) and node.attr == "kind" and "spec" in _last_name(node.value))
        ):
            yield node.lineno


@pytest.mark.parametrize(
    "text",
    [
        "isinstance(t.spec, SourceSpec)",
        "isinstance(spec, MapSpec | FilterSpec)",
        "isinstance(x, (transformation.SinkSpec, int))",
        "issubclass(cls, ReduceSpec)",
        "type(operator.spec) is y",
        "x is MapSpec",
        "x.__class__ in {MapSpec, FilterSpec}",
        "operator.spec.__class__",
        "match x:\n    case MapSpec(): pass",
        "{MapSpec: 1}",
        "operator.spec.kind == 'MapSpec'",
    ],
)
def test_the_question_is_recognized(text: str) -> None:
    assert list(questions(ast.parse(text)))


@pytest.mark.parametrize(
    "text", ["MapSpec(function)", "isinstance(x, JobGraph)", "type(error)", "t.spec.role is Role.SINK"]
)
def test_other_questions_are_not(text: str) -> None:
    assert not list(questions(ast.parse(text)))


def test_only_the_registry_asks_for_the_kind_of_an_operator() -> None:
    found = [
        f"{path.relative_to(SOURCE)}:{line}"
        for path in sorted(SOURCE.rglob("*.py"))
        if path != REGISTRY
        for line in questions(ast.parse(path.read_text()))
    ]
    assert found == [f"graph/plan.py:{_position_hash()}"], "an id without uid is made of the kind; nothing else is"


def _position_hash() -> int:
    text = (SOURCE / "graph" / "plan.py").read_text()
    [line] = [n for n, line in enumerate(text.splitlines(), 1) if "t.spec.kind" in line]
    return line


def _final_subclasses(base: type[OperatorSpec]) -> Iterator[type[OperatorSpec]]:
    for spec in base.__subclasses__():
        if spec.__module__.startswith("tidegate."):
            yield from _final_subclasses(spec) if spec.__subclasses__() else (spec,)


def test_registry_has_a_kind_for_every_spec() -> None:
    assert set(KINDS) == set(_final_subclasses(OperatorSpec))
    assert all(kind.__module__.startswith("tidegate.operators.kinds.") for kind in KINDS.values())
    assert all(issubclass(kind, StreamOperator) for kind in KINDS.values())

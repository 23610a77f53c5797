"""The rooms of ARCHITECTURE.md and who may import whom."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path

import pytest

from tidegate.base.former_names import MOVED

SOURCE = Path(__file__).parents[2] / "src" / "tidegate"

# Each room and the rooms it may import. A lower line of ARCHITECTURE.md never imports a higher one.
BASE = {"base"}
NAMES = BASE | {"common", "metrics", "table", "util"}
STATE = NAMES | {"state"}
ENGINE = STATE | {"graph", "operators", "checkpoint"}
FACES = ENGINE | {"connectors", "runtime", "snapshots"}
ALLOWED = {
    "base": BASE,
    "common": NAMES,
    "metrics": NAMES,
    "table": NAMES,
    "util": NAMES,
    "state": STATE,
    "graph": STATE | {"graph"},
    "operators": STATE | {"graph", "operators"},
    "checkpoint": STATE | {"checkpoint"},
    "snapshots": STATE | {"checkpoint", "snapshots"},
    "connectors": ENGINE | {"connectors"},
    "datastream": ENGINE | {"connectors", "datastream"},
    "runtime": ENGINE | {"runtime"},
    "spark": FACES | {"spark"},
    "control": FACES | {"control"},
    "cli": FACES | {"datastream", "spark", "control", "cli", "testing"},
}


def imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def modules(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


def test_every_folder_is_a_known_room() -> None:
    folders = {p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "__pycache__"}
    assert folders == set(ALLOWED) | {"testing"}


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_room_imports_only_what_it_may(room: str) -> None:
    assert modules(room), f"room {room} is empty"
    wrong = []
    for path in modules(room):
        for name in imports(path):
            parts = name.split(".")
            if parts[0] == "tidegate" and len(parts) > 1 and parts[1] not in ALLOWED[room] | {"__version__"}:
                wrong.append(f"{path.relative_to(SOURCE)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_only_spark_imports_pyspark() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for room in (set(ALLOWED) | {"testing"}) - {"spark"}
        for path in modules(room)
        for name in imports(path)
        if name.split(".")[0] in {"pyspark", "py4j"}
    ]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_the_tests() -> None:
    wrong = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in SOURCE.rglob("*.py")
        for name in imports(path)
        if name.split(".")[0] == "tests"
    ]
    assert not wrong, "\n".join(wrong)


def test_every_module_opens_with_a_docstring() -> None:
    bare = [
        str(path.relative_to(SOURCE))
        for path in SOURCE.rglob("*.py")
        if path.read_text().strip() and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not bare, bare


def test_no_module_uses_a_former_module_name() -> None:
    stale = [
        f"{path.relative_to(SOURCE)} imports {name}"
        for path in SOURCE.rglob("*.py")
        for name in imports(path)
        if name in MOVED
    ]
    assert not stale, "\n".join(stale)


@pytest.mark.parametrize("former", sorted(MOVED))
def test_former_module_name_gives_the_module_itself(former: str) -> None:
    assert import_module(former) is import_module(MOVED[former])

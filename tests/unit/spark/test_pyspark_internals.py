"""Private names of pyspark stand in one module, which names the tested versions. The first program of a container has one more."""

from __future__ import annotations

import ast
from pathlib import Path

import pyspark
import pytest

import tidegate
from tidegate.spark.pyspark_internals import TESTED

SPARK = Path(tidegate.__file__).parent / "spark"
ALLOWED = {"pyspark_internals.py", "driver_main.py"}
"""The second runs before it is known whether Tidegate can be imported."""
PRIVATE = {"_jsc", "_jvm", "_jrdd", "_gateway", "_active_spark_context", "_ensure_initialized", "_python_includes"}


def private_names(path: Path) -> set[str]:
    """Attributes of pyspark's objects (those of ``self`` are our own), and modules that pyspark does not document."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Attribute) and not (isinstance(node.value, ast.Name) and node.value.id == "self"):
            found.add(node.attr)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("pyspark"):
            found |= {alias.name for alias in node.names if alias.name.startswith("_") or alias.name == "java_gateway"}
            found |= {"java_gateway"} & set((node.module or "").split("."))
    return found & (PRIVATE | {"java_gateway", "_find_spark_home"})


@pytest.mark.parametrize("path", sorted(SPARK.glob("*.py")), ids=lambda path: path.name)
def test_only_one_module_uses_private_names_of_pyspark(path: Path) -> None:
    assert bool(private_names(path)) == (path.name in ALLOWED)


def test_installed_pyspark_is_a_tested_version() -> None:
    """If this fails: run the tests on Spark (make integration crash), then add the version to TESTED, to the module's text
    and to scripts/test_sparks.py."""
    assert ".".join(pyspark.__version__.split(".")[:2]) in TESTED

"""Whoever asks for a name of PyFlink that is not here is told so; what is here is never reported."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pickle
import runpy
from enum import Enum
from pathlib import Path
from typing import Any

import pytest

from tests.compat.parity import API, compare
from tidegate.base import imports
from tidegate.common import ExecutionConfig
from tidegate.datastream import MapFunction, StreamExecutionEnvironment

ROOT = Path(__file__).parents[2]
PAGE = "docs/features.md"


def lacking(kind: str) -> list[str]:
    """Modules, classes (``module:Class``) or methods that are missing today. Some always will be: Java's."""
    _, missing = compare()
    shape = {"module": (0, 0), "class": (1, 0), "method": (1, 1)}[kind]
    names = [m.replace("pyflink", "tidegate", 1) for m in sorted(missing) if not {"(", "<", "="} & set(m)]
    found = [n for n in names if n.startswith("tidegate.") and (n.count(":"), n.partition(":")[2].count(".")) == shape]
    return [n for n in found if "._" not in n and "__init__" not in n]


def test_the_list_is_what_was_recorded_of_pyflink() -> None:
    content = runpy.run_path(str(ROOT / "scripts" / "gen_pyflink_names.py"))["content"]
    assert (ROOT / "src/tidegate/pyflink_names.json").read_text() == content(), "run scripts/gen_pyflink_names.py"


def test_a_missing_module_is_not_there_yet() -> None:
    names = lacking("module")
    assert names
    for name in names:
        with pytest.raises(ModuleNotFoundError, match=f"is part of PyFlink's API but .*{PAGE}") as raised:
            importlib.import_module(name)
        assert raised.value.name is not None and name.startswith(raised.value.name)  # or the package it is in
        assert str(raised.value).startswith(raised.value.name)


def test_a_missing_class_is_not_there_yet() -> None:
    names = lacking("class")
    assert names
    for name in names:
        module, _, found = name.partition(":")
        with pytest.raises(ImportError, match=f"{module}.{found} is part of PyFlink's API but .*{PAGE}"):
            exec(f"from {module} import {found}", {})
        with pytest.raises(AttributeError):
            getattr(importlib.import_module(module), found)
        assert not hasattr(importlib.import_module(module), found)


def test_a_missing_method_is_not_there_yet_on_the_class_and_on_its_objects() -> None:
    names = lacking("method")
    assert names
    for name in names:
        module, _, (kind, method) = *name.partition(":")[:2], name.partition(":")[2].split(".")
        holder: Any = getattr(importlib.import_module(module), kind, None)
        if holder is None or issubclass(holder, Enum):
            continue  # a class within a missing one; or one whose attributes are its members
        with pytest.raises(AttributeError, match=f"{kind}.{method} is part of PyFlink's API but .*{PAGE}"):
            getattr(holder, method)
        assert getattr(holder, method, None) is None


def test_what_exists_is_never_reported() -> None:
    present, missing = compare()
    assert len(present) > len(missing)  # the names resolve with the finder in place
    assert StreamExecutionEnvironment.execute.__name__ == "execute"


def test_what_comes_to_be_is_found_without_a_change_of_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    name = next(n for n in lacking("method") if ":ExecutionConfig." in n).rpartition(".")[2]

    class Later(ExecutionConfig):
        pass

    setattr(Later, name, lambda self: "here")
    assert getattr(Later, name)(None) == "here"


def test_names_nobody_knows_are_errors_as_ever() -> None:
    stream = StreamExecutionEnvironment.get_execution_environment().from_collection([1])
    with pytest.raises(AttributeError, match="'DataStream' object has no attribute 'widow'"):
        stream.widow  # type: ignore[attr-defined]  # noqa: B018
    with pytest.raises(ImportError, match=r"cannot import name 'NoFunction' from 'tidegate.datastream'"):
        exec("from tidegate.datastream import NoFunction", {})
    with pytest.raises(ModuleNotFoundError, match=r"No module named 'tidegate.datastream.nothing'"):
        importlib.import_module("tidegate.datastream.nothing")


def test_java_is_said_to_be_without_meaning() -> None:
    with pytest.raises(ImportError, match="has no meaning here: there are no Java objects in a Python program"):
        exec("from tidegate.datastream.state_backend import CustomStateBackend", {})


def test_modules_and_classes_are_what_they_were() -> None:
    spec = importlib.util.find_spec("tidegate.datastream.functions")
    assert spec is not None and spec.origin is not None and spec.origin.endswith("functions.py")
    assert pickle.loads(pickle.dumps(MapFunction)) is MapFunction
    assert set(json.loads(API.read_text())) <= {n.replace("tidegate", "pyflink", 1) for n in imports._names()}

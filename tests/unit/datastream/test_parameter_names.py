"""Classes that users extend take their parameters by position: an override may call its parameters as it likes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from importlib import import_module
from typing import Any

import pytest

from tidegate.operators.contracts.functions import CheckpointedFunction, FunctionObject

MODULES = (
    "tidegate.common",
    "tidegate.common.serialization",
    "tidegate.common.serializer",
    "tidegate.common.watermark_strategy",
    "tidegate.datastream",
    "tidegate.datastream.async_functions",
    "tidegate.datastream.connectors.file_system",
    "tidegate.datastream.connectors.kafka",
    "tidegate.datastream.functions",
    "tidegate.datastream.window",
    "tidegate.operators.contracts.sink",
    "tidegate.operators.contracts.source",
    "tidegate.connectors.functions.two_phase_commit",
    "tidegate.connectors.functions.write_ahead",
)
CALLED = ("Context", "State", "StateBackend", "StateStore", "MetricGroup", "TimerService", "WatermarkOutput")
"""Ends of names. Programs call these classes, with PyFlink's names of parameters, and do not extend them."""


def hooks() -> Iterator[tuple[str, Callable[..., Any]]]:
    """Give what a subclass overrides: abstract methods, and the hooks of all functions."""
    for module in MODULES:
        for name, found in vars(import_module(module)).items():
            if inspect.isclass(found) and found.__module__.startswith("tidegate.") and not name.endswith(CALLED):
                for method in getattr(found, "__abstractmethods__", ()):
                    yield f"{found.__qualname__}.{method}", getattr(found, method)
    for base in (FunctionObject, CheckpointedFunction):
        for method, function in vars(base).items():
            if inspect.isfunction(function):
                yield f"{base.__qualname__}.{method}", function


EVERY = dict(hooks())


def test_hooks_of_all_kinds_are_found() -> None:
    assert {"Trigger.on_element", "SerializationSchema.serialize", "FunctionObject.open", "SplitReader.read"} <= set(
        EVERY
    )


@pytest.mark.parametrize("name", sorted(EVERY))
def test_parameters_of_a_hook_have_no_names_for_callers(name: str) -> None:
    parameters = inspect.signature(EVERY[name]).parameters.values()
    named = [one.name for one in parameters if one.kind is one.POSITIONAL_OR_KEYWORD and one.name != "self"]
    assert not named, f"{name}: {', '.join(named)}"

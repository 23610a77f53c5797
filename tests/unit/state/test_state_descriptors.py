"""Descriptors: PyFlink's names, and wrong arguments."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError
from tidegate.common.typeinfo import Types
from tidegate.state import descriptors, ttl
from tidegate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    ReducingStateDescriptor,
    ValueStateDescriptor,
)

# recorded from PyFlink 2.x, pyflink.datastream.state; broadcast and operator state live elsewhere
PYFLINK: dict[str, dict[str, list[str]]] = json.loads((Path(__file__).parent / "pyflink_state_api.json").read_text())


@pytest.mark.parametrize("name", PYFLINK)
def test_names_and_parameters_are_those_of_pyflink(name: str) -> None:
    found: Any = None
    for module in (descriptors, descriptors, ttl):
        found = found or getattr(module, name.split(".", maxsplit=1)[0], None)
    for part in name.split(".")[1:]:
        found = getattr(found, part)
    for method, parameters in PYFLINK[name].items():
        signature = inspect.signature(getattr(found, method))
        assert [parameter for parameter in signature.parameters if parameter != "self"] == parameters, method


def test_names() -> None:
    assert ValueStateDescriptor("v", Types.LONG()).get_name() == "v"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ValueStateDescriptor("", Types.LONG()), "ValueStateDescriptor takes a non-empty text"),
        (lambda: ValueStateDescriptor("v", 5), "ValueStateDescriptor takes type information, a class or None"),  # type: ignore[arg-type]
        (lambda: ListStateDescriptor(5, None), "ListStateDescriptor takes a non-empty text"),  # type: ignore[arg-type]
        (lambda: MapStateDescriptor("m", "str", None), "MapStateDescriptor takes type information"),  # type: ignore[arg-type]
        (lambda: ReducingStateDescriptor("r", 5, None), "ReducingStateDescriptor takes a function of two values"),
        (lambda: AggregatingStateDescriptor("a", max, None), "AggregatingStateDescriptor takes an AggregateFunction"),
    ],
)
def test_wrong_arguments_are_refused(make: Any, message: str) -> None:
    with pytest.raises(ArgumentTypeError, match=message):
        make()

"""What is called for a record, and who hears of checkpoints."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.datastream.functions import MapFunction
from tidegate.datastream.typed_functions import TypedMap, TypedReduce
from tidegate.graph.plan import Operator
from tidegate.graph.transformation import OperatorSpec
from tidegate.operators.contracts.functions import Hooks, SubtaskRuntimeContext, is_notified
from tidegate.operators.contracts.specs import LastReduction, MapSpec, ProcessSpec, ReduceSpec

CONTEXT = SubtaskRuntimeContext(Operator(1, "op", None, "1", MapSpec(str), 1, 128, None), 0, None)


class Callable:
    """Not one of our function classes: it is a callable that has a method ``map`` for purposes of its own."""

    def map(self, value: Any) -> Any:
        raise AssertionError("not this one")

    reduce = map

    def __call__(self, *values: Any) -> Any:
        return "called", *values


class Extends(MapFunction):
    def map(self, value: Any) -> Any:
        return "map", value

    def __call__(self, value: Any) -> Any:
        raise AssertionError("not this one")


class Duck:
    def map(self, value: Any) -> Any:
        return "map", value


@pytest.mark.parametrize(
    ("spec", "result"),
    [
        (MapSpec(Callable()), ("called", 1)),
        (ReduceSpec(Callable()), ("called", 1)),
        (MapSpec(TypedMap(Callable(), lambda v: v)), ("called", 1)),
        (MapSpec(Extends()), ("map", 1)),
        (MapSpec(TypedMap(Extends(), lambda v: v)), ("map", 1)),
        (MapSpec(Duck()), ("map", 1)),
        (MapSpec(TypedMap(Duck(), lambda v: v)), ("map", 1)),
        (MapSpec(str), "1"),
    ],
)
def test_a_callable_is_called_and_of_a_function_object_its_method(spec: OperatorSpec, result: Any) -> None:
    assert spec.callables[0](1) == result


def test_a_callable_that_reduces_is_called_whatever_the_wrapper() -> None:
    typed = TypedReduce(Callable(), lambda v: v)
    assert typed.reduce(1, 2) == ("called", 1, 2)
    assert LastReduction(Callable(), None)._descriptor.reduce(1, 2) == ("called", 1, 2)


def test_a_process_function_may_be_callable_too() -> None:
    class Both:
        def process_element(self, value: Any, ctx: Any) -> Any:
            return ["processed", value]

        def __call__(self, value: Any) -> Any:
            raise AssertionError("not this one")

    assert ProcessSpec(Both()).callables[0](1, None) == ["processed", 1]


class Told:
    def __init__(self) -> None:
        self.told: list[int] = []

    def __call__(self, a: Any, b: Any = None) -> Any:
        return a

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self.told.append(checkpoint_id)


class HasFieldOfThatName(MapFunction):
    """Its ``_function`` and ``wrapped`` are its own business, and no wrapping of ours."""

    def __init__(self, inner: Any) -> None:
        self._function = self.wrapped = inner

    def map(self, value: Any) -> Any:
        return value


class ToldHasFieldOfThatName(Told):
    def __init__(self) -> None:
        super().__init__()
        self._function = self.wrapped = len


@pytest.mark.parametrize(
    ("function", "notified"),
    [
        (Told(), True),
        (HasFieldOfThatName(Told()), False),
        (ToldHasFieldOfThatName(), True),
        (TypedMap(HasFieldOfThatName(Told()), str), False),
        (TypedMap(ToldHasFieldOfThatName(), str), True),
        (LastReduction(Told(), None), True),
        (LastReduction(max, None), False),
        (len, False),
        (Told, False),
    ],
)
def test_fields_of_the_users_do_not_decide_who_is_notified(function: Any, notified: bool) -> None:
    assert is_notified(function) is notified
    assert Hooks(function, "here", CONTEXT).listens is notified


@pytest.mark.parametrize("wrap", [lambda told: TypedMap(told, str), lambda told: LastReduction(told, None)])
def test_wrappers_pass_notifications_on(wrap: Any) -> None:
    told = Told()
    Hooks(wrap(told), "here", CONTEXT).notify((1, 2), (3,))
    assert told.told == [1, 2]

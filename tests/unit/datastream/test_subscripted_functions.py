"""PyFlink's window functions, triggers, async functions and others are generic: programs name types in brackets."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.common.config_options import ConfigOption
from tidegate.datastream.async_retry_strategies import FixedDelayRetryStrategy
from tidegate.datastream.functions import (
    AllWindowFunction,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    BroadcastProcessFunction,
    KeyedBroadcastProcessFunction,
    ProcessAllWindowFunction,
    ProcessWindowFunction,
    WindowFunction,
)
from tidegate.datastream.window import TimeWindow, Trigger, WindowAssigner


@pytest.mark.parametrize(
    "base",
    [
        ProcessWindowFunction,
        ProcessAllWindowFunction,
        WindowFunction,
        AllWindowFunction,
        Trigger,
        WindowAssigner,
        AsyncFunction,
        AsyncRetryStrategy,
        AsyncRetryPredicate,
        FixedDelayRetryStrategy,
        BroadcastProcessFunction,
        KeyedBroadcastProcessFunction,
        ConfigOption,
    ],
)
def test_a_subscripted_base_is_the_base(base: Any) -> None:
    made = type("Made", base[tuple, TimeWindow].__mro_entries__(()), {})
    assert issubclass(made, base)


def test_contexts_too() -> None:
    assert ProcessWindowFunction.Context[TimeWindow].__origin__ is ProcessWindowFunction.Context  # type: ignore[misc, attr-defined]

"""The pytest plugin of Tidegate, found by the entry point ``pytest11``: the fixtures ``harness`` and ``mini_cluster``.

Tidegate is imported when a test uses a fixture, so other test suites pay nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tidegate.testing.executor import MiniCluster
    from tidegate.testing.function_harness import FunctionHarness


@pytest.fixture
def harness() -> Iterator[Callable[..., FunctionHarness]]:
    """``harness(function, ...)`` of ``tidegate.testing``; all harnesses are closed after the test."""
    from tidegate.testing import harness as made

    opened: list[FunctionHarness] = []

    def make(function: Any, **arguments: Any) -> FunctionHarness:
        opened.append(made(function, **arguments))
        return opened[-1]

    yield make
    for one in reversed(opened):
        one.close()


@pytest.fixture
def mini_cluster(tmp_path: Path) -> MiniCluster:
    """``mini_cluster.environment()``: whole programs in this process, with their files in the directory of the test."""
    from tidegate.testing.executor import MiniCluster

    return MiniCluster(tmp_path)

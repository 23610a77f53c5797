"""What users test their programs with: a harness for functions, the engine of ``execution.target: test``, contract suites.

``docs/testing.md`` is the guide. The names below are imported when they are first used: a worker that looks for its fault hook
imports this package, and nothing else.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tidegate.testing.executor import MiniCluster as MiniCluster
    from tidegate.testing.function_harness import FunctionHarness as FunctionHarness
    from tidegate.testing.function_harness import HarnessSnapshot as HarnessSnapshot
    from tidegate.testing.function_harness import Record as Record
    from tidegate.testing.function_harness import Timer as Timer
    from tidegate.testing.harness_kinds import Fired as Fired
    from tidegate.testing.harness_kinds import harness as harness
    from tidegate.testing.harness_kinds import pipeline_harness as pipeline_harness
    from tidegate.testing.sources import At as At
    from tidegate.testing.sources import Pause as Pause
    from tidegate.testing.sources import TestSource as TestSource
    from tidegate.testing.sources import Watermark as Watermark

_PLACES = {
    "FunctionHarness": "function_harness",
    "HarnessSnapshot": "function_harness",
    "Record": "function_harness",
    "Timer": "function_harness",
    "MiniCluster": "executor",
    "At": "sources",
    "Pause": "sources",
    "TestSource": "sources",
    "Watermark": "sources",
    "Fired": "harness_kinds",
    "harness": "harness_kinds",
    "pipeline_harness": "harness_kinds",
}

__all__ = sorted(_PLACES)  # noqa: PLE0605 - the names are those of the table


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_PLACES[name]}"), name)

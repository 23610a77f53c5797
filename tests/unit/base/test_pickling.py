"""What travels to the executors, and how a part that cannot is named."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.pickling import dumps, why_not
from tidegate.operators.contracts.specs import MapSpec

GUARD = threading.Lock()


class Holder:
    def __init__(self) -> None:
        self.settings = {"size": 3, "lock": threading.Lock()}

    def map(self, value: Any) -> Any:
        return value


def closing_over(connection: Any) -> Callable[[Any], Any]:
    return lambda value: (connection, value)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (closing_over(GUARD), "variable 'connection' of <lambda> ("),
        (Holder(), "entry 'lock', in attribute 'settings' of Holder"),
        (Holder().map, "entry 'lock', in attribute 'settings' of Holder"),
        (functools.partial(print, GUARD), "argument 1 of a partial"),
        (closing_over([1, closing_over(GUARD)]), "variable 'connection' of <lambda> ("),
    ],
)
def test_the_variable_that_cannot_be_pickled_is_named(function: Any, name: str) -> None:
    with pytest.raises(TypeError) as refused:
        dumps(MapSpec(function))
    text = why_not(MapSpec(function), refused.value)
    assert "cannot pickle '_thread.lock' object" in text and name in text


def test_a_global_variable_and_a_default_of_the_main_program(tmp_path: Path) -> None:
    script = tmp_path / "main.py"
    script.write_text(
        "import threading\nfrom tidegate.base.pickling import why_not\nguard = threading.Lock()\n"
        "def fold(v):\n    return [guard for _ in v]\ndef kept(v, lock=guard): return v\n"
        "print(why_not(fold, TypeError('x')))\nprint(why_not(kept, TypeError('x')))\n"
    )
    lines = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert lines == [
        f"TypeError: x (global variable 'guard' in fold ({script}:4))",
        f"TypeError: x (a default of kept ({script}:6))",
    ]


def test_what_cannot_be_found_is_not_invented() -> None:
    assert why_not(3, TypeError("odd")) == "TypeError: odd"


def test_a_cached_function_travels_with_what_it_calls() -> None:
    @functools.lru_cache(maxsize=7)
    def fibonacci(n: int) -> int:
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    loaded = pickle.loads(dumps(fibonacci))
    assert loaded(30) == 832040 and loaded.cache_parameters() == {"maxsize": 7, "typed": False}
    assert loaded.cache_info().misses == 31  # it calls itself through its cache

"""The programs by name, how each is run, and its result in a form that two engines can be compared by."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.differential.canonical import canonical
from tests.compat.differential.engine_api import RuntimeExecutionMode

Key = Callable[[Any], Any]
PrintedLines = Callable[[], list[str]]
"""What was printed since the last call."""


@dataclass(frozen=True)
class Surroundings:
    """What a program may need besides its environment. ``directory``: its own, empty; ``printed``: see PrintedLines."""

    directory: Path
    printed: PrintedLines


@dataclass(frozen=True)
class Program:
    """``build(env)`` gives the stream to collect. A program that ``runs_itself`` gets the surroundings too, executes, and returns
    records. ``key``: records of one key are compared in their order, of several keys without; None: a multiset.
    ``modes``: STREAMING, BATCH or both. ``fails_with``: the job has to fail, and its error to contain this text.
    ``in_threads``: PyFlink runs its functions in threads of the JVM, not in processes."""

    name: str
    build: Callable[..., Any]
    parallelisms: tuple[int, ...]
    key: Key | None
    runs_itself: bool
    modes: tuple[str, ...]
    fails_with: str | None
    in_threads: bool


@dataclass(frozen=True, order=True)
class Case:
    """A program at one parallelism in one mode."""

    name: str
    parallelism: int
    mode: str

    def __str__(self) -> str:
        """How the case is called in recorded.json."""
        return f"{self.name}@{self.parallelism}" + ("-batch" if self.mode == "BATCH" else "")


PROGRAMS: dict[str, Program] = {}


def program(
    *,
    parallelisms: tuple[int, ...] = (2,),
    key: Key | None = None,
    runs_itself: bool = False,
    modes: tuple[str, ...] = ("STREAMING",),
    fails_with: str | None = None,
    in_threads: bool = False,
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Enter the function into the catalog under its name."""

    def enter(build: Callable[..., Any]) -> Callable[..., Any]:
        name = build.__name__
        assert name not in PROGRAMS, f"two programs are called {name}"
        PROGRAMS[name] = Program(name, build, parallelisms, key, runs_itself, modes, fails_with, in_threads)
        return build

    return enter


def first(record: Any) -> Any:
    """The key of records that begin with it."""
    return record[0]


def whole(record: Any) -> Any:
    """The key of a stream whose order is determined as a whole."""
    return "all"


def cases() -> list[Case]:
    """Every program with every parallelism and mode it runs at."""
    return sorted(Case(p.name, n, mode) for p in PROGRAMS.values() for n in p.parallelisms for mode in p.modes)


def run(case: Case, env: Any, surroundings: Surroundings) -> Any:
    """The result of one run: a list of records sorted, or for each key the list in order, or a text about the failure."""
    entry = PROGRAMS[case.name]
    env.set_parallelism(case.parallelism)
    env.set_runtime_mode(RuntimeExecutionMode[case.mode])
    try:
        records = _records(entry, env, surroundings)
    except Exception as error:
        if entry.fails_with is not None and entry.fails_with in str(error):
            return f"failed with {entry.fails_with}"
        raise RuntimeError(f"program {case} failed") from error
    return normalized(records, entry.key)


def _records(entry: Program, env: Any, surroundings: Surroundings) -> list[Any]:
    if entry.runs_itself:
        return list(entry.build(env, surroundings))
    with entry.build(env).execute_and_collect() as iterator:
        return list(iterator)


def normalized(records: Iterable[Any], key: Key | None) -> Any:
    if key is None:
        return sorted(map(canonical, records), key=_text)
    by_key: dict[str, list[Any]] = {}
    for record in records:
        by_key.setdefault(_text(canonical(key(record))), []).append(canonical(record))
    return dict(sorted(by_key.items()))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True)

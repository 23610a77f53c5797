"""``make mutants``: runs every mutant of the protocol against the simulated fault tests, and prints what has caught it.

Each runs in a process of its own, whose imports give the patched source. Some of them:
``python -m tests.mutants.mutant_run "ignore the lease"``.
"""

from __future__ import annotations

import functools
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import logging
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.mutants.protocol_mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src/tidegate"
MOST_CASES = 400
NONE = Mutant("(no mutant)", "", "", "")


class Patched(importlib.machinery.SourceFileLoader):
    """Gives the changed source of one module."""

    def __init__(self, mutant: Mutant) -> None:
        self.mutant, self.module = mutant, "tidegate." + mutant.file.removesuffix(".py").replace("/", ".")
        super().__init__(self.module, str(SOURCES / mutant.file))

    def get_code(self, fullname: str) -> Any:
        return compile(mutated(self.mutant), self.mutant.file, "exec")


class Finder(importlib.abc.MetaPathFinder):
    """In front of all others, for the module that is mutated."""

    def __init__(self, loader: Patched) -> None:
        self._loader = loader

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> Any:
        return importlib.util.spec_from_loader(fullname, self._loader) if fullname == self._loader.module else None


def mutated(mutant: Mutant) -> str:
    text = (SOURCES / mutant.file).read_text()
    assert text.count(mutant.old) == 1, (
        f"'{mutant.name}': its text stands {text.count(mutant.old)} times in {mutant.file}"
    )
    return text.replace(mutant.old, mutant.new)


# -- in the process of a mutant ----------------------------------------------------------------------------------------------


def cases(first: str) -> Iterator[Any]:
    """The kind that shows it soonest, then random ones."""
    from tests.unit.simulation.cases import FIRST_CRASH, Case
    from tests.unit.simulation.simulated_programs import SCENARIOS
    from tests.unit.simulation.test_faults import cases_of, second_life
    from tests.unit.simulation.test_schedules import paused_cases, random_case
    from tidegate.testing.simulation.driver import Fault, Kind
    from tidegate.testing.simulation.engine import Chances

    def at_points(kind: Kind, repeats: int = 0) -> Iterator[Any]:
        every = [cases_of(scenario, kind, repeats) for scenario in SCENARIOS]
        return (case for row in itertools.zip_longest(*every) for case in row if case is not None)

    def merging(concurrent: int, repeats: int = 0) -> Iterator[Any]:
        for seed, crash in itertools.product(range(20), (200, 400)):
            faults = (Fault(0, "*", crash, Kind.CRASH), Fault(1, "*", crash + 100, Kind.CRASH))
            for scenario in ("states", "keyed_count"):
                yield Case(scenario, seed, faults, concurrent=concurrent, interval=10, fan_in=2, repeats=repeats)

    def publishing() -> Iterator[Any]:
        """A crash in every publish of a life, that of the metadata among them."""
        for scenario in SCENARIOS:
            for passing in range(1, second_life(scenario).passed["storage.publish.before-link"] + 1):
                fault = Fault(1, "storage.publish.before-link", passing, Kind.CRASH)
                yield Case(scenario, 1, (FIRST_CRASH, fault))

    def beside_rounds() -> Iterator[Any]:
        """A program with a sink that publishes with every round, beside one that waits."""
        for seed, passing in itertools.product(range(9, 30), range(9, 19, 2)):
            fault = Fault(1, "K3.ledger.before-commit", passing, Kind.ERROR)
            yield functools.partial(not_published, seed, fault)

    def torn(seed: int, **chances: float) -> Any:
        return replace(random_case(seed), chances=Chances(**chances), faults=())

    if first in ("crashes", "errors"):
        kinds: Iterator[Any] = at_points(Kind.CRASH if first == "crashes" else Kind.ERROR)
    elif first == "concurrent":
        kinds = merging(3)
    elif first == "held":
        kinds = merging(3, repeats=1)
    elif first == "round sinks":
        kinds = beside_rounds()
    elif first == "publishes":
        kinds = publishing()
    elif first == "merges":
        kinds = merging(1)
    elif first == "paused":
        kinds = itertools.chain.from_iterable(paused_cases(scenario, every=7) for scenario in SCENARIOS)
    elif first == "reruns":
        kinds = (torn(seed, rerun=0.15) for seed in range(60))
    elif first == "tries":
        kinds = (torn(seed, rerun_whole=0.3, die=0.1) for seed in range(60))
    elif first == "in flight":
        crashes = tuple(Fault(life, "C7.subsumed", 1, Kind.CRASH) for life in range(2))
        rescaled = itertools.product(range(4), SCENARIOS)
        kinds = itertools.chain(
            (Case(scenario, seed, crashes, parallelism=(1, 3, 2), unaligned=1) for seed, scenario in rescaled),
            (replace(random_case(seed), unaligned=1, concurrent=1, repeats=0) for seed in range(60)),
        )
    elif first == "repeats":
        kinds = itertools.chain(at_points(Kind.CRASH, 1), at_points(Kind.ERROR, 1))
    else:
        kinds = iter(())
    assert second_life
    return itertools.chain(itertools.islice(kinds, MOST_CASES), (random_case(seed) for seed in range(150)))


def not_published(seed: int, fault: Any) -> str | None:
    from tests.unit.simulation.test_round_sinks import ONCE, lost_or_unknown

    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        problem = lost_or_unknown(root, seed, fault, **ONCE)
    return f"a sink of rounds, seed {seed}, {fault}\n{problem}" if problem else None


def run_one(name: str) -> int:
    """Ends with 0 and what has caught it; with 1 if nothing has; with 2 if the mutant is no program at all."""
    mutant = next(m for m in (*MUTANTS, NONE) if m.name == name)
    if mutant is not NONE:
        sys.meta_path.insert(0, Finder(Patched(mutant)))
    logging.disable(logging.CRITICAL)
    count = 0
    try:
        from tests.unit.simulation.cases import fails

        for count, case in enumerate(cases(mutant.cases), start=1):
            problem = case() if callable(case) else fails(case)
            if problem is not None:
                return _caught(count, _said(problem), case)
    except Exception as error:  # the mutant breaks even a run without faults
        return _caught(count, f"{type(error).__name__}: {error}", "-")
    print(f"{count}\tnothing\t-")
    return 1


def _caught(count: int, said: str, case: Any) -> int:
    print(f"{count}\t{said}\t{case}")
    return 2 if _NO_PROGRAM.search(said) else 0


_NO_PROGRAM = re.compile(r"\b(Import|ModuleNotFound|Syntax|Indentation|Name|UnboundLocal|Attribute|Type)Error\b")
"""A mutant that fails like this breaks no rule: it does not import or run, and any test would see that."""


def _said(problem: str) -> str:
    return problem.splitlines()[1].strip()


# -- all of them -------------------------------------------------------------------------------------------------------------


def main(names: list[str]) -> int:
    wanted = [mutant for mutant in (NONE, *MUTANTS) if not names or mutant.name in names]
    print(f"{'mutant':58} {'caught by':>10}  {'after':>6}  what was seen", flush=True)
    survivors = 0
    with ThreadPoolExecutor(max(1, (os.cpu_count() or 2) - 1 or 1)) as pool:
        for mutant, (code, line, seconds) in zip(wanted, pool.map(_in_a_process, wanted), strict=True):
            count, said, _ = [*line.split("\t"), "", ""][:3]
            survivors += code != (1 if mutant is NONE else 0)
            verdict = _VERDICTS[code].format(count) if mutant is not NONE else "nothing" if code == 1 else "SOMETHING"
            print(f"{mutant.name:58} {verdict:>10}  {seconds:5.0f}s  {said[:110]}", flush=True)
    caught_all = len([m for m in wanted if m is not NONE]) - survivors
    print(f"\n{caught_all} of {len([m for m in wanted if m is not NONE])} mutants caught")
    return 1 if survivors else 0


_VERDICTS = {0: "case {}", 1: "SURVIVES", 2: "BROKEN"}


def _in_a_process(mutant: Mutant) -> tuple[int, str, float]:
    started = time.monotonic()
    command = [sys.executable, "-m", "tests.mutants.mutant_run", "--one", mutant.name]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    line = ended.stdout.strip().splitlines()[-1] if ended.stdout.strip() else f"0\t{ended.stderr.strip()[-300:]}\t-"
    if ended.returncode not in (0, 1, 2) or not ended.stdout.strip():
        return 2, line, time.monotonic() - started
    return ended.returncode, line, time.monotonic() - started


if __name__ == "__main__":
    sys.exit(run_one(sys.argv[2]) if sys.argv[1:2] == ["--one"] else main(sys.argv[1:]))

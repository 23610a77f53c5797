"""User code that forks: children live across rounds, and neither stores nor output notice them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.simulation.observer import ledger_pages
from tests.sinks import LedgerSink
from tests.sources import ScriptedSource
from tidegate.common.typeinfo import Types
from tidegate.graph.transformation import Input, Partitioning, Program, Ship
from tidegate.graph.transformation import Transformation as Step
from tidegate.operators.contracts.specs import MapSpec, SinkSpec, SourceSpec
from tidegate.runtime.master import JobMaster
from tidegate.state.descriptors import ValueStateDescriptor
from tidegate.testing.simulation.engine import SimulatedEngine

NUMBERS = 60
SUMS = sorted([digit, sum(range(digit, n + 1, 10))] for digit in range(10) for n in range(digit, NUMBERS, 10))
FORK = multiprocessing.get_context("fork")


class Sums:
    """Sums of numbers by their last digit. ``forks``: called with the state for the first number."""

    children: ClassVar[list[int]] = []
    forks: ClassVar[Callable[[Any], Any]]

    def open(self, context: Any) -> None:
        self.state = context.get_state(ValueStateDescriptor("sum", Types.LONG()))

    def map(self, value: int) -> Any:
        self.state.update((self.state.value() or 0) + value)
        if value == 0:
            Sums.forks(self.state)
        return [value % 10, self.state.value()]

    def close(self) -> None: ...


@pytest.fixture(autouse=True)
def _no_child_stays() -> Iterator[None]:
    yield
    for child in Sums.children:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    Sums.children.clear()


def run(place: Path, backend: str, forks: Callable[[Any], Any]) -> JobMaster:
    Sums.forks = staticmethod(forks)
    numbers = ScriptedSource(list(range(NUMBERS)))
    numbers.initial_limit = numbers.maximum_limit = 3
    steps = (
        Step(1, "numbers", SourceSpec(numbers)),
        Step(2, "sums", MapSpec(Sums()), (Input(1, Partitioning(Ship.HASH, lambda value: value % 10)),)),
        Step(3, "ledger", SinkSpec(LedgerSink(f"{place}/ledger")), (Input(2),)),
    )
    settings = {
        "execution.checkpointing.interval": 10,
        "execution.checkpointing.dir": f"{place}/checkpoints",
        "tidegate.state.map-size": 1 << 20,
        "tidegate.state.cache-size": 0,  # every round reads its store
        "state.backend.type": backend,
        "parallelism.default": 1,
        "restart-strategy.type": "none",
    }
    master = JobMaster(Program("sums", steps, settings), SimulatedEngine(1), local_root=f"{place}/local")
    master.run()
    return master


def committed(place: Path) -> list[Any]:
    return sorted(value for page in ledger_pages(f"{place}/ledger").values() for value in page)


def by_multiprocessing(_: Any) -> None:
    child = FORK.Process(target=signal.pause)
    child.start()
    Sums.children.append(child.pid or 0)


def by_fork(_: Any) -> None:
    child = os.fork()
    if child == 0:
        signal.pause()
    Sums.children.append(child)


def by_another_program(_: Any) -> None:
    Sums.children.append(subprocess.Popen([sys.executable, "-c", "import signal; signal.pause()"]).pid)


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize("forks", [by_multiprocessing, by_fork, by_another_program])
def test_a_child_that_lives_across_rounds_costs_no_rebuild(tmp_path: Path, backend: str, forks: Any) -> None:
    master = run(tmp_path, backend, forks)
    assert len(Sums.children) == 1
    os.kill(Sums.children[0], 0)  # it lives
    assert committed(tmp_path) == SUMS
    assert master.view().totals.rebuilds == 0


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize(
    "touch", [lambda s: s.value(), lambda s: s.update(99), lambda s: s.clear()], ids=["value", "update", "clear"]
)
def test_a_child_that_touches_state_gets_an_error(tmp_path: Path, backend: str, touch: Callable[[Any], Any]) -> None:
    ours, theirs = FORK.Pipe()
    found: list[str] = []

    def in_child(state: Any) -> None:
        try:
            touch(state)
            theirs.send("nothing was raised")
        except Exception as error:
            theirs.send(f"{type(error).__name__}: {error}")

    def forks(state: Any) -> None:
        child = FORK.Process(target=in_child, args=(state,))
        child.start()
        found.append(ours.recv())
        child.join()

    run(tmp_path, backend, forks)
    assert committed(tmp_path) == SUMS
    assert found[0].startswith(
        "StateAccessError: State or a timer is used outside of the process that runs the operator."
    )
    assert "where: state 'sum' of operator 'sums'" in found[0]
    assert "found: a child process that was forked while the operator ran" in found[0]
    assert "cure: use state in the function itself" in found[0]


@pytest.mark.parametrize("backend", ["hashmap", "rocksdb"])
@pytest.mark.parametrize(("ends", "code"), [("returns", 1), ("raises", 1), ("exits", 3), ("exits with a text", 1)])
def test_a_child_that_leaves_the_function_ends_there(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], backend: str, ends: str, code: int
) -> None:
    """As a second worker it would emit all of it again."""
    codes: list[int] = []

    def forks(_: Any) -> None:
        child = os.fork()
        if child:
            codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        elif ends == "raises":
            raise ValueError("of the child")
        elif ends != "returns":
            sys.exit(3 if ends == "exits" else "no")

    master = run(tmp_path, backend, forks)
    assert codes == [code]
    assert committed(tmp_path) == SUMS
    assert master.view().totals.rebuilds == 0
    told = "A child process that a function has forked must end with os._exit." in capfd.readouterr().err
    assert told == (ends != "exits")

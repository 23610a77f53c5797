"""Cases of the simulation: what is run, spread over the machine's cores, and how a failing one is run again."""

from __future__ import annotations

import logging
import multiprocessing
import os
import random
import shutil
import tempfile
import traceback
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import pytest

from tests.simulation.observer import Outside
from tests.simulation.simulation import Simulation, seeded_tokens, simulate
from tests.simulation.stingy_pace import stingy
from tests.unit.simulation.simulated_programs import SCENARIOS
from tidegate.base.errors import FencedError, TidegateError
from tidegate.runtime import attempt
from tidegate.state import materialize
from tidegate.state.stores import close_removed_stores
from tidegate.testing.simulation.driver import Fault, Kind
from tidegate.testing.simulation.engine import Chances

NO_CHANCES = Chances()
INTERVAL = 100
"""Between checkpoints, in milliseconds; rounds take 5, 30 or 60."""
INCREMENTAL, CHANGELOG = "execution.checkpointing.incremental", "state.changelog.enabled"
STORED: dict[str, dict[str, Any]] = {
    "incremental": {INCREMENTAL: True},
    "full": {INCREMENTAL: False},
    "behind": {INCREMENTAL: True, "tidegate.state.upload": "behind"},
    "changelog": {CHANGELOG: True, "state.changelog.periodic-materialize.interval": 150},
    "compressed": {INCREMENTAL: True, "execution.checkpointing.snapshot-compression": True},
    "uncached": {INCREMENTAL: True, "tidegate.state.cache-size": 0},
}
STATES: dict[str, dict[str, Any]] = {
    f"{backend}-{name}": {"state.backend.type": backend, **settings}
    for backend in ("hashmap", "rocksdb")
    for name, settings in STORED.items()
}
"""How state is kept and stored: each backend with each kind of checkpoint."""
NUMBERS = ("concurrent", "interval", "fan_in", "pause", "repeats", "unaligned")
FIRST_CRASH = Fault(0, "*", 150, Kind.CRASH)
"""Ends the first life of a case early: faults of the second hit the restore as well as the run."""


@dataclass(frozen=True)
class Case:
    """One run. The text of a case is its arguments for ``reproduce.py``."""

    scenario: str
    seed: int
    faults: tuple[Fault, ...] = ()
    chances: Chances = NO_CHANCES
    parallelism: tuple[int, ...] = (2,)
    concurrent: int = 1
    """How many checkpoints may be under way."""
    interval: int = INTERVAL
    fan_in: int = materialize.FAN_IN
    """So many state files of a size are merged. Lives are short: with the usual number hardly any would be."""
    pause: int = 0
    """A driver is stopped at this point of its second life and wakes up when its successor has ended."""
    state: str = "hashmap-incremental"
    """One of ``STATES``."""
    repeats: int = 0
    """1: the job promises at-least-once."""
    unaligned: int = 0
    """1: checkpoints have records in flight: subtasks stop after a few records of every round."""

    def __str__(self) -> str:
        rates = [f"{name}={rate}" for name, rate in vars(self.chances).items() if rate]
        widths = ",".join(map(str, self.parallelism))
        rest = [f"{name}={getattr(self, name)}" for name in NUMBERS]
        rest += [f"parallelism={widths}", f"state={self.state}"]
        return " ".join([self.scenario, str(self.seed), *map(str, self.faults), *rates, *rest])

    @property
    def settings(self) -> dict[str, Any]:
        prefix = "execution.checkpointing."
        mode = "AT_LEAST_ONCE" if self.repeats else "EXACTLY_ONCE"
        timing = {
            prefix + "max-concurrent-checkpoints": self.concurrent,
            prefix + "interval": self.interval,
            prefix + "mode": mode,
            prefix + "unaligned.enabled": bool(self.unaligned),
        }
        return timing | STATES[self.state]

    @staticmethod
    def parse(words: list[str]) -> Case:
        given = dict(word.split("=") for word in words[2:] if ":" not in word)
        widths = tuple(int(width) for width in given.pop("parallelism", "2").split(","))
        rest: dict[str, Any] = {name: int(given.pop(name)) for name in NUMBERS if name in given}
        rest["state"] = given.pop("state", "hashmap-incremental")
        faults = tuple(Fault.parse(word) for word in words[2:] if ":" in word)
        rates = Chances(**{name: float(rate) for name, rate in given.items()})
        return Case(words[0], int(words[1]), faults, rates, widths, **rest)


def run_case(case: Case, root: str) -> Simulation:
    """Run it and check everything; raises what is wrong."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(materialize, "FAN_IN", case.fan_in)
        with stingy(case.seed, most=6) if case.unaligned else nullcontext():
            return _run_case(case, root)


def _run_case(case: Case, root: str) -> Simulation:
    scenario = SCENARIOS[case.scenario]
    if case.pause:
        return _run_two_drivers(case, root)
    simulation = simulate(
        scenario,
        root,
        case.seed,
        case.faults,
        chances=case.chances,
        parallelism=case.parallelism,
        settings=case.settings,
    )
    _check_failed_lives(simulation)
    return simulation


def _run_two_drivers(case: Case, root: str) -> Simulation:
    """Fault C9: the old driver is stopped and taken for dead, its successor starts, then the old one continues. Whether the
    successor has ended by then, was killed, or is in the middle of its work, the seed decides."""
    dice = random.Random(case.seed)
    Outside.forget_all()
    with seeded_tokens(case.seed):
        simulation = Simulation(SCENARIOS[case.scenario], root, case.seed, chances=case.chances, settings=case.settings)
        simulation.live(case.faults, case.parallelism[0])
        old = simulation.new_life(parallelism=case.parallelism[0])
        old.run_until(case.pause)
        assert old.is_paused, f"I13: the driver never came to point {case.pause}"
        simulation.alone = False
        new = simulation.new_life(case.faults, case.parallelism[-1])
        new.run_until(dice.choice((dice.randrange(40, 700), 1_000_000)))
        simulation.look(new)
        old.wake_up()
        simulation.look(old)
        if new.is_paused:
            new.wake_up()
            simulation.look(new)
        # one that was stopped before it claimed the job is the newer one when it continues
        assert old.error is None or new.error is None, f"both drivers failed: {old.error!r}, {new.error!r}"
        for life in (old, new):
            allowed = FencedError if life.starts else TidegateError
            assert life.error is None or isinstance(life.error, allowed), f"C9: {life.error!r}"
        simulation.conclude(case.parallelism[0])
    return simulation


def _check_failed_lives(simulation: Simulation) -> None:
    """I10: faults a restart cannot outlive end a life with an error of ours, before it has done anything."""
    for life in simulation.lives:
        if life.error is not None:
            assert isinstance(life.error, TidegateError | OSError), f"I10: {life.error!r}"
            assert not life.starts, f"a life failed that should have gone on: {life.error!r}"


# -- many of them ------------------------------------------------------------------------------------------------------------


def fails(case: Case) -> str | None:
    """What is wrong with a case; None: nothing."""
    root = tempfile.mkdtemp(prefix="tidegate-simulation-", dir="/dev/shm" if os.path.isdir("/dev/shm") else None)
    try:
        simulation = run_case(case, root)
        fired = [fault for life in simulation.lives for fault in life.fired]
        wanted = [fault for fault in case.faults if fault.point != "*" and fault not in fired]
        return f"{case}\n    I13: did not fire: {', '.join(map(str, wanted))}" if wanted else None
    except BaseException as error:
        return f"{case}\n    {type(error).__name__}: {error}\n{traceback.format_exc(limit=-3)}"
    finally:
        shutil.rmtree(root, ignore_errors=True)
        close_removed_stores()


def _begin_worker() -> None:
    """Injected faults are logged as they should be, by the thousand; the driver checks its invariants after every event."""
    logging.disable(logging.ERROR)
    attempt.VALIDATE = True


def run_all(cases: Iterable[Any], fails: Callable[[Any], str | None] = fails) -> None:
    """Run them on all cores; the assertion lists those that failed and how to run one again.

    The processes are forked from a server that has opened nothing: RocksDB, which other tests open in this process, has threads
    that a fork of it would lack.
    """
    listed = list(cases)
    assert listed
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    cores = (os.cpu_count() or 1) // int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    with context.Pool(max(1, cores), _begin_worker) as pool:
        failures = [text for text in pool.imap_unordered(fails, listed, chunksize=8) if text is not None]
    again = "\nrun one again: .venv/bin/python -m tests.unit.simulation.reproduce <the line>"
    assert not failures, f"{len(failures)} of {len(listed)} cases failed\n" + "\n".join(sorted(failures)[:5]) + again

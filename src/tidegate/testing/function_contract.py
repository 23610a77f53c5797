"""Test the contract of a plain ``SinkFunction``: at least once.

Subclass the suite, and define how to make the function, and how to read its output::

class TestMyFunction(SinkFunctionContract):
    def make_function(self, directory):
        return MyFunction(...)

    def visible(self, directory):
        return [...]  # what an outside reader sees, as values
"""

from __future__ import annotations

import random
from collections import Counter
from pathlib import Path
from typing import Any

from tidegate.connectors.functions.function_sink import FunctionSink
from tidegate.testing.sink_run import SinkRun


class SinkFunctionContract:
    """Test a plain sink function. Override ``make_function`` and ``visible``. Values may be repeated after a failure.
    No value may be missing when its round is acknowledged, and no value may appear that was not sent."""

    seeds = 10

    def make_function(self, directory: Path) -> Any:
        """Return a function that writes into this directory."""
        raise NotImplementedError

    def visible(self, directory: Path) -> list[Any]:
        """Return all records that a reader of the output sees now, in any order."""
        raise NotImplementedError

    def value(self, number: int) -> Any:
        """Return the record with this number. Different numbers give different records."""
        return number

    def _run(self, directory: Path, parallelism: int = 2) -> SinkRun:
        sink = FunctionSink(self.make_function(directory))
        return SinkRun(sink, str(directory / "staging"), self.value, parallelism)

    def _check(self, directory: Path, count: int, *, once: bool, sent: int | None = None) -> None:
        found, expected = Counter(self.visible(directory)), Counter(map(self.value, range(count)))
        unknown = set(found) - set(map(self.value, range(sent or count)))
        assert not expected - found, f"not written when the round was acknowledged: {expected - found}"
        assert not unknown, f"never sent: {unknown}"
        assert not once or found == expected, f"written more than once without a failure: {found - expected}"

    def test_all_is_written_when_a_round_is_acknowledged(self, tmp_path: Path) -> None:
        """Buffered values must be written by ``flush`` or ``close``, which end every round."""
        run = self._run(tmp_path)
        for count in (7, 1, 0, 30):
            run.step(count)
            self._check(tmp_path, run.position, once=True)

    def test_a_function_is_opened_for_every_round_and_attempt(self, tmp_path: Path) -> None:
        """In one process: a resource that ``close`` has released must not be used again."""
        run = self._run(tmp_path, parallelism=1)
        for _ in range(3):
            run.attempt(2)
            run.step(2)
        self._check(tmp_path, 6, once=False)

    def test_an_attempt_that_fails_hides_nothing_from_the_next(self, tmp_path: Path) -> None:
        run = self._run(tmp_path)
        run.step(4)
        run.failed_attempt(3)
        run.step(10)
        self._check(tmp_path, 14, once=False)

    def test_random_runs_with_crashes_and_rescales(self, tmp_path: Path) -> None:
        for seed in range(self.seeds):
            directory = tmp_path / str(seed)
            directory.mkdir()
            run, dice, sent = self._run(directory), random.Random(seed), 0
            for _ in range(15):
                action = dice.choice(("round", "round", "checkpoint", "twice", "crash"))
                if action == "crash":
                    run.restore(dice.choice((1, 2, 3)))
                elif action == "twice":
                    run.attempt(3)
                else:
                    run.step(dice.choice((0, 1, 5)), checkpoint=action == "checkpoint")
                sent = max(sent, run.position + 3)
            run.step(3)
            self._check(directory, run.position, once=False, sent=max(sent, run.position))

"""Test the contract of ``TwoPhaseCommitSinkFunction``.

Subclass the suite, and define how to make the function, and how to read its output::

class TestMyFunction(TwoPhaseCommitContract):
    def make_function(self, directory):
        return MyFunction(...)

    def visible(self, directory):
        return [...]  # what an outside reader sees, as values
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cloudpickle

from tidegate.connectors.functions.function_sink import SinkContext
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSink, TwoPhaseCommitSinkFunction
from tidegate.testing.sink_contract import SinkContract
from tidegate.testing.sink_run import START_MS


class TwoPhaseCommitContract(SinkContract):
    """Test all of ``SinkContract``, by the sink that drives the function, and the function's methods one by one.
    Override ``make_function`` and ``visible``, and ``leftovers`` where open transactions can be listed."""

    def make_function(self, directory: Path) -> TwoPhaseCommitSinkFunction:
        """Return a function that writes into this directory."""
        raise NotImplementedError

    def make_sink(self, directory: Path) -> TwoPhaseCommitSink:
        """Return the sink of the function."""
        return TwoPhaseCommitSink(self.make_function(directory))

    def _prepared(self, function: TwoPhaseCommitSinkFunction, *numbers: int) -> Any:
        """Return a transaction with these values, as it comes out of a checkpoint."""
        transaction = function.begin_transaction()
        for number in numbers:
            function.invoke(transaction, self.value(number), SinkContext(START_MS))
        function.pre_commit(transaction)
        return cloudpickle.loads(cloudpickle.dumps(transaction))

    def test_each_transaction_is_one_of_its_own(self, tmp_path: Path) -> None:
        function = self.make_function(tmp_path)
        first, second = self._prepared(function, 0, 1), self._prepared(function, 2)
        function.abort(first)
        function.commit(second)
        assert self.visible(tmp_path) == [self.value(2)], "an abort of one transaction has changed another"

    def test_a_handle_is_all_that_another_process_needs(self, tmp_path: Path) -> None:
        committed, aborted = (self._prepared(self.make_function(tmp_path), n) for n in range(2))
        self.make_function(tmp_path).commit(committed)
        self.make_function(tmp_path).abort(aborted)
        assert self.visible(tmp_path) == [self.value(0)]

    def test_commits_and_aborts_may_come_again(self, tmp_path: Path) -> None:
        function = self.make_function(tmp_path)
        transaction = self._prepared(function, 0, 1)
        for commit in (function.commit, function.commit, self.make_function(tmp_path).recover_and_commit):
            commit(transaction)
            self._check(tmp_path, 2, "after a repeated commit:")
        given_up = self._prepared(function, 2)
        for abort in (function.abort, function.abort, self.make_function(tmp_path).recover_and_abort):
            abort(given_up)
            self._check(tmp_path, 2, "after a repeated abort:")

    def test_a_transaction_that_was_not_prepared_can_be_given_up(self, tmp_path: Path) -> None:
        function = self.make_function(tmp_path)
        transaction = function.begin_transaction()
        function.invoke(transaction, self.value(0), SinkContext(START_MS))
        self.make_function(tmp_path).recover_and_abort(cloudpickle.loads(cloudpickle.dumps(transaction)))
        assert self.visible(tmp_path) == []

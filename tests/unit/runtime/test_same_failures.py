"""Failures that no restart cures end the job: after few tries, with one report. Outages are retried as the strategy says."""

from __future__ import annotations

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.runtime.small_jobs import SmallJob
from tidegate.base.errors import ConfigurationError, RoundError, ServiceError, UserCodeError
from tidegate.base.portable_errors import StandIn
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.master import JobMaster
from tidegate.runtime.restart import (
    ExponentialDelayRestart,
    FailureRateRestart,
    FixedDelayRestart,
    SameFailures,
    is_outage,
)
from tidegate.testing.simulation.engine import SimulatedEngine

LIMIT = "tidegate.restart.same-failure-limit"
FOR_EVER = {
    "restart-strategy.type": "exponential-delay",
    "restart-strategy.exponential-delay.initial-backoff": 1,
    "restart-strategy.exponential-delay.max-backoff": 2,
}


class Runs:
    """A function that fails at a record. ``until``: so many failures, then none. In a list, because tasks run in this process."""

    failures: ClassVar[list[int]] = []

    def __init__(self, error: Callable[[], BaseException], until: int = 1000, at: int = 1) -> None:
        self.error, self.until, self.at = error, until, at
        Runs.failures = []

    def __call__(self, value: Any) -> Any:
        if value == self.at and len(Runs.failures) < self.until:
            Runs.failures.append(value)
            raise self.error()
        return value


def bad_record() -> BaseException:
    return ValueError(f"no number: {object()!r}")  # with an address, which another run does not repeat


def run(tmp_path: Path, function: Any, **settings: Any) -> list[Any]:
    job = SmallJob(tmp_path, function=function)
    JobMaster(job.program(**{**FOR_EVER, **settings}), SimulatedEngine(seed=1), local_root=job.local).run()
    return job.committed()


def test_same_failure_at_the_same_record_ends_the_job_after_three_tries(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING), pytest.raises(UserCodeError) as caught:
        run(tmp_path, Runs(bad_record))
    assert len(Runs.failures) == 3
    assert caught.value.where is not None and caught.value.found is not None
    assert "operator 'mapped'" in caught.value.where and f"{__file__}:" in caught.value.where
    assert caught.value.found.startswith("ValueError: no number: ") and caught.value.found.endswith("; record 1")
    assert caught.value.cure == (
        "tidegate debug small shows record, key and state. Correct the function, then start the program again. The failure came "
        f"3 times with no completed checkpoint in between, so another restart would not help ({LIMIT})"
    )
    restarts = [record for record in caplog.records if "restart in" in record.getMessage()]
    assert [record.exc_info is not None for record in restarts] == [True, False]
    assert "\n" not in restarts[1].getMessage()
    assert "job small: same failure as before, attempt 2 of 3; restart in" in restarts[1].getMessage()


@pytest.mark.parametrize(("limit", "tries"), [(1, 1), (5, 5)])
def test_limit_is_configurable(tmp_path: Path, limit: int, tries: int) -> None:
    with pytest.raises(UserCodeError, match=f"The failure came {tries} times"):
        run(tmp_path, Runs(bad_record), **{LIMIT: limit})
    assert len(Runs.failures) == tries


@pytest.mark.parametrize("limit", [0, -1])
def test_limit_of_zero_or_less_leaves_the_strategy_alone(tmp_path: Path, limit: int) -> None:
    assert run(tmp_path, Runs(bad_record, until=7), **{LIMIT: limit}) == list(range(10))
    assert len(Runs.failures) == 7


def test_failures_at_other_records_are_not_the_same(tmp_path: Path) -> None:
    class Everywhere(Runs):
        def __call__(self, value: Any) -> Any:
            if len(Runs.failures) < 6:
                Runs.failures.append(value)
                raise ValueError(f"failure {len(Runs.failures)}")
            return value

    assert run(tmp_path, Everywhere(bad_record)) == list(range(10))


def test_completed_checkpoint_in_between_begins_the_count_anew() -> None:
    same = SameFailures(3)
    failure = UserCodeError("a", where="b", found="c")
    counted = [same.add(failure, checkpoints=checkpoints, rounds=9) for checkpoints in (1, 1, 2, 2, 2)]
    assert counted == [1, 2, 1, 2, 3]
    assert [same.is_final(times) for times in counted] == [False, False, False, False, True]


def test_two_failures_in_turn_are_both_counted() -> None:
    same = SameFailures(3)
    first, second = UserCodeError("a", where="b", found="c"), UserCodeError("a", where="b", found="d")
    assert [same.add(failure, checkpoints=0, rounds=1) for failure in (first, second) * 2] == [1, 1, 2, 2]


class Redis:
    class ConnectionError(Exception):
        """No OSError, as of some clients."""


@pytest.mark.parametrize(
    "error",
    [ConnectionRefusedError, TimeoutError, Redis.ConnectionError, lambda: OSError(28, "No space left on device")],
)
def test_outages_that_user_code_meets_are_retried_as_the_strategy_says(
    tmp_path: Path, error: Callable[[], BaseException], caplog: pytest.LogCaptureFixture
) -> None:
    assert run(tmp_path, Runs(error, until=6)) == list(range(10))
    assert len(Runs.failures) == 6
    short = [r.getMessage() for r in caplog.records if "same failure as before, retried" in r.getMessage()]
    assert len(short) == 5


def test_error_that_hides_an_outage_is_retried(tmp_path: Path) -> None:
    def hidden() -> BaseException:
        error = RuntimeError("the lookup failed")
        error.__cause__ = ConnectionResetError("by peer")
        return error

    assert run(tmp_path, Runs(hidden, until=6)) == list(range(10))


class ServerGone(OSError):
    """Cannot be loaded from a pickle: its ``__init__`` takes other arguments than it hands on."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__(f"{host}:{port} is away")


@pytest.mark.parametrize("name", ["NoHostAvailable", "RateLimitError", "InternalServerError", "ClusterDownError"])
def test_outages_are_known_by_the_names_that_clients_give_them(name: str) -> None:
    assert is_outage(type(name, (Exception,), {})("away"))
    assert not is_outage(type("BadRecord", (Exception,), {})("no number"))


def test_outage_whose_class_does_not_survive_the_way_to_the_driver_is_still_one() -> None:
    failed = UserCodeError("A user function raised an exception")
    failed.__cause__ = ServerGone("host", 1)
    arrived = pickle.loads(pickle.dumps(failed))
    assert isinstance(arrived.__cause__, StandIn)
    assert is_outage(arrived)


def test_lost_executors_before_the_first_round_are_retried() -> None:
    failures = SameFailures(3)
    lost = RoundError(
        "A round failed.", found="Job aborted due to stage failure: ExecutorLostFailure (executor 1 exited)"
    )
    broken = RoundError("A round failed.", found="Job aborted: Python worker exited: No module named 'numpy'")
    assert [failures.add(lost, checkpoints=0, rounds=0) for _ in range(4)] == [0, 0, 0, 0]
    assert [failures.add(broken, checkpoints=0, rounds=0) for _ in range(3)] == [1, 2, 3]


def test_missing_file_is_no_outage(tmp_path: Path) -> None:
    with pytest.raises(UserCodeError):
        run(tmp_path, Runs(lambda: FileNotFoundError(2, "No such file", "rates.csv")))
    assert len(Runs.failures) == 3


def test_connectors_error_in_a_task_is_retried_as_the_strategy_says(tmp_path: Path) -> None:
    assert run(tmp_path, Runs(lambda: ServiceError("the broker does not answer"), until=6)) == list(range(10))


def test_configuration_error_in_a_task_ends_the_job_at_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="set it"):
        run(tmp_path, Runs(lambda: ConfigurationError("a key is missing", cure="set it")))
    assert len(Runs.failures) == 1


class BrokenEngine(SimulatedEngine):
    """As Spark whose Python workers do not start, ``until`` so many rounds were tried."""

    def __init__(self, until: int = 1000, error: type[RoundError] = RoundError, first: int = 0) -> None:
        super().__init__(seed=1)
        self.until, self.error, self.first, self.runs = until, error, first, 0

    def run(self, plan: RoundPlan) -> list[Ack]:
        self.runs += 1
        if self.first < self.runs <= self.until:
            raise self.error(
                "A Spark job failed, and so did all its retries",
                found=f"Cannot run program in stage {self.runs}.0",
                cure="set PYSPARK_PYTHON",
            )
        return super().run(plan)


def test_first_round_that_never_succeeds_ends_the_job_with_the_cure(tmp_path: Path) -> None:
    job, engine = SmallJob(tmp_path), BrokenEngine()
    with pytest.raises(RoundError) as caught:
        JobMaster(job.program(**FOR_EVER), engine, local_root=job.local).run()
    assert engine.runs == 3
    assert caught.value.cure == (
        f"set PYSPARK_PYTHON. No round has succeeded, and this error came 3 times: the job gives up ({LIMIT})"
    )


def test_engine_that_fails_after_an_accepted_round_is_retried_as_the_strategy_says(tmp_path: Path) -> None:
    job, engine = SmallJob(tmp_path), BrokenEngine(first=1, until=8)
    JobMaster(job.program(**FOR_EVER), engine, local_root=job.local).run()
    assert job.committed() == list(range(10))
    assert engine.runs > 8


def test_strategy_that_names_a_number_of_failures_keeps_it() -> None:
    assert SameFailures.of({}, ExponentialDelayRestart()).limit == 3
    assert SameFailures.of({}, FixedDelayRestart(attempts=7)).limit == 8
    assert SameFailures.of({}, FixedDelayRestart(attempts=(1 << 31) - 1)).limit == 3
    assert SameFailures.of({}, ExponentialDelayRestart(attempts=4)).limit == 5
    assert SameFailures.of({}, FailureRateRestart(max_failures=9)).limit == 10
    assert SameFailures.of({LIMIT: 2}, FixedDelayRestart(attempts=7)).limit == 2


def test_as_many_restarts_as_a_fixed_delay_allows_still_help(tmp_path: Path) -> None:
    fixed = {"restart-strategy.type": "fixed-delay", "restart-strategy.fixed-delay.delay": 0}
    assert run(tmp_path, Runs(bad_record, until=5), **fixed, **{"restart-strategy.fixed-delay.attempts": 5}) == list(
        range(10)
    )

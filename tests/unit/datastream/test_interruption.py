"""Ctrl-C and SIGTERM while a program executes: real signals to this process, in its main thread."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from tidegate.base.errors import JobFailedError, JobSuspendedError
from tidegate.common import Configuration, JobExecutionResult, JobID, JobStatus
from tidegate.datastream import StreamExecutionEnvironment, executor
from tidegate.datastream.executor import Interruption
from tidegate.graph.transformation import Program
from tidegate.operators.flow.rows import Ack
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.handle import StartedJob
from tidegate.runtime.master import JobMaster
from tidegate.testing.simulation.engine import SimulatedEngine

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture(autouse=True)
def _as_on_a_terminal() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and the tests may be one."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


class WaitingJob:
    """Runs until it is suspended; ``act`` is what happens while somebody waits for it."""

    job_id = "f" * 32

    def __init__(self, act: Callable[[], None], outcome: Exception | None = None) -> None:
        self._act, self._outcome = act, outcome
        self.suspended = 0

    def suspend(self) -> None:
        self.suspended += 1

    def result(self, timeout: float | None = None) -> JobExecutionResult:
        act, self._act = self._act, lambda: None
        act()
        if self._outcome is not None:
            raise self._outcome
        return JobExecutionResult(JobID(self.job_id), 1)

    def status(self) -> JobStatus:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError

    def trigger_savepoint(self, directory: str | None = None) -> Future[str]:
        raise NotImplementedError

    def stop_with_savepoint(self, directory: str | None = None, *, drain: bool = False) -> Future[str]:
        raise NotImplementedError

    def html(self) -> str:
        raise NotImplementedError

    def add_listener(self, listener: Any) -> None:
        raise NotImplementedError


@pytest.fixture(autouse=True)
def handlers() -> Any:
    before = {number: signal.getsignal(number) for number in SIGNALS}
    yield
    assert {number: signal.getsignal(number) for number in SIGNALS} == before


def send(number: int) -> None:
    os.kill(os.getpid(), number)


def execute(job: WaitingJob, start: Callable[[], object] = lambda: None) -> JobExecutionResult:
    """As the environment does it."""
    with Interruption() as interruption:
        start()
        return interruption.result_of(job)


def fails() -> None:
    send(signal.SIGINT)
    raise JobFailedError("The start failed")


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_suspends_and_says_what_became_of_the_job(number: int, caplog: Any) -> None:
    job = WaitingJob(lambda: send(number), JobSuspendedError("nothing is lost", cure="start it again"))
    with pytest.raises(KeyboardInterrupt if number == signal.SIGINT else SystemExit) as caught:
        execute(job)
    assert job.suspended == 1
    if number == signal.SIGINT:
        assert str(caught.value) == "nothing is lost\n  cure: start it again"
    else:
        assert caught.value.args == (143,)
        assert "nothing is lost\n  cure: start it again" in caplog.text


def test_the_second_ends_at_once() -> None:
    def twice() -> None:
        try:
            send(signal.SIGINT)
        finally:
            assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
            assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL

    with pytest.raises(KeyboardInterrupt):
        execute(WaitingJob(twice))


def test_a_signal_while_the_job_is_started_waits_until_it_has_started() -> None:
    done = []
    job = WaitingJob(lambda: done.append("waited for"), JobSuspendedError("nothing is lost"))
    with pytest.raises(KeyboardInterrupt, match="nothing is lost"):
        execute(job, lambda: (send(signal.SIGINT), done.append("started")))
    assert (done, job.suspended) == (["started", "waited for"], 1)


def test_a_start_that_fails_does_not_swallow_the_signal() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        execute(WaitingJob(lambda: None), fails)
    assert isinstance(caught.value.__cause__, JobFailedError)


def test_a_job_that_fails_meanwhile_is_interrupted_all_the_same() -> None:
    job = WaitingJob(lambda: send(signal.SIGINT), JobFailedError("The job failed"))
    with pytest.raises(KeyboardInterrupt, match="The job failed"):
        execute(job)


def test_a_handler_of_the_users_stays_and_what_it_raises_suspends() -> None:
    def mine(number: int, frame: Any) -> None:
        raise SystemExit(5)

    before = signal.signal(signal.SIGTERM, mine)
    try:
        job = WaitingJob(lambda: send(signal.SIGTERM), JobSuspendedError("nothing is lost"))
        with pytest.raises(SystemExit) as caught:
            execute(job)
        assert (caught.value.code, job.suspended) == (5, 1)
    finally:
        signal.signal(signal.SIGTERM, before)


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        job = WaitingJob(lambda: send(signal.SIGINT))
        execute(job)
        assert job.suspended == 0
    finally:
        signal.signal(signal.SIGINT, before)


def test_in_another_thread_no_handler_is_set() -> None:
    results: list[Any] = []

    def run() -> None:
        with Interruption() as one:
            results.append(signal.getsignal(signal.SIGINT))
            results.append(one.result_of(WaitingJob(lambda: None)))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert results[0] is signal.default_int_handler
    assert len(results) == 2


class Interrupting(SimulatedEngine):
    """The signal comes while a round runs, in a thread of the job's, after a checkpoint."""

    armed = True

    def run(self, plan: RoundPlan) -> list[Ack]:
        if plan.context.completed and self.armed:
            send(signal.SIGINT)
            self.armed = False
        return super().run(plan)


class Executor:
    def execute_async(self, program: Program) -> StartedJob:
        return StartedJob(JobMaster(program, Interrupting(1)), [])


@pytest.mark.parametrize("job_id", ["interrupted", None])
def test_a_whole_program_says_how_to_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, job_id: str | None
) -> None:
    executor.register_executor("interrupting", Executor)
    monkeypatch.setattr(Interrupting, "armed", True)
    keys: dict[str, Any] = {
        "execution.target": "interrupting",
        "execution.checkpointing.interval": "10 ms",
        "execution.checkpointing.dir": str(tmp_path),
        "tidegate.round.max-records": 5,
        **({"tidegate.job-id": job_id} if job_id else {}),
    }

    def run(**more: Any) -> None:
        configuration = Configuration.from_dict({**keys, **more})
        env = StreamExecutionEnvironment.get_execution_environment(configuration).set_parallelism(2)
        numbers = env.from_collection(list(range(500))).uid("numbers")
        numbers.print().uid("out")
        env.execute("say it")

    with pytest.raises(KeyboardInterrupt) as caught:
        run()
    text = str(caught.value)
    assert "Job 'say it' (" in text
    assert "was interrupted; nothing is lost and nothing was deleted" in text
    (job,) = tmp_path.iterdir()
    (kept,) = job.glob("chk-*")
    assert f"where: its latest checkpoint is retained: {kept}" in text
    monkeypatch.setattr(Interrupting, "armed", False)
    if job_id:
        assert "cure: start the same program again: it continues from there" in text
        run()
    else:
        assert "start the program with execution.state-recovery.path set to it (tidegate run -s)" in text
        run(**{"execution.state-recovery.path": str(kept)})

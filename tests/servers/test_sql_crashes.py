"""Workers and servers die at every point of the database sinks; what is looked at is the table itself."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.servers.sql_cases import Target
from tidegate.base import faults
from tidegate.base.errors import RetryableCommitError, TidegateError
from tidegate.datastream.connectors.postgresql import Table
from tidegate.testing import kill_hook
from tidegate.testing.sink_run import Crash, SinkRun

TASK_POINTS = ("K1.sql.begun", "K1.sql.written", "K2.sql.prepared")
DRIVER_POINTS = ("K3.sql.before-commit", "K3.sql.committed", "K3.sql.settled")
COUNT = 10


def new_run(target: Target, directory: Path) -> tuple[SinkRun, str]:
    table = target.new_table()
    sink = target.sink(Table(table, ["id", "label"], ["id"]), lock_timeout_ms=2_000, patience_ms=20_000)
    sink.validate()
    return SinkRun(sink, str(directory / "staging"), lambda n: (n, f"row {n}"), 2), table


def check(target: Target, run: SinkRun, table: str) -> None:
    """Everything once, nothing left."""
    count = run.position
    run.finish()
    assert target.rows(table) == [(n, f"row {n}") for n in range(count)]
    assert target.prepared() == []


def commit_until_done(run: SinkRun) -> None:
    """As step 8 does it: with all of them, again and again."""
    for _ in range(20):
        try:
            return run.commit()
        except RetryableCommitError:
            continue
    raise AssertionError("the commit never succeeded")


class At:
    """A hook that does something once, when a point is passed for the first time."""

    def __init__(self, point: str, act: Any) -> None:
        self.point, self.act, self.fired = point, act, False
        faults.install(self)

    def __call__(self, name: str, where: dict[str, Any]) -> None:
        if name == self.point and not self.fired:
            self.fired = True
            self.act()

    def __enter__(self) -> At:
        return self

    def __exit__(self, *_: object) -> None:
        faults.install(None)
        assert self.fired, f"{self.point} was never passed: nothing was injected"


def crash() -> None:
    raise Crash("here")


@pytest.mark.parametrize("point", TASK_POINTS)
def test_a_worker_dies(target: Target, tmp_path: Path, point: str) -> None:
    run, table = new_run(target, tmp_path)
    run.step(COUNT, checkpoint=True)
    run.step(3)
    with At(point, crash), suppress(Crash):  # not pytest.raises: it would keep the dead writer's connection
        run.attempt(COUNT, checkpoint=True)
    assert target.rows(table) == [(n, f"row {n}") for n in range(COUNT)]
    run.restore(parallelism=3)
    assert target.prepared() == []
    run.step(COUNT, checkpoint=True)
    check(target, run, table)


def test_a_commit_does_not_wait_for_what_is_prepared_after_it(target: Target, tmp_path: Path) -> None:
    """The next checkpoint is prepared while this one is committed; with a wait for each other both would stand still."""
    run, table = new_run(target, tmp_path)
    run.accept(run.attempt(COUNT, checkpoint=True), COUNT)
    run.complete()
    waiting = list(run.pending)
    run.accept(run.attempt(COUNT, checkpoint=True), COUNT)
    run.committer.commit(waiting)
    assert target.rows(table) == [(n, f"row {n}") for n in range(COUNT)]
    run.complete()
    run.commit()
    check(target, run, table)


@pytest.mark.parametrize("point", [*TASK_POINTS, *DRIVER_POINTS])
def test_the_server_is_killed_and_comes_back(own_targets: dict[str, Target], tmp_path: Path, point: str) -> None:
    """At write, prepare and commit: a round that fails is run again, a commit is tried again."""
    for target in own_targets.values():
        run, table = new_run(target, tmp_path / target.server.name)
        run.step(COUNT, checkpoint=True)

        def restart(target: Target = target) -> None:
            target.server.kill()
            target.server.start()

        with At(point, restart):
            try:
                prepared = run.attempt(COUNT, checkpoint=True)
            except TidegateError:
                run.committer.abort_lingering([], [])  # what a declined round leads to
                prepared = run.attempt(COUNT, checkpoint=True)
            run.accept(prepared, COUNT)
            run.complete()
            assert target.rows(table) == [(n, f"row {n}") for n in range(COUNT)]
            commit_until_done(run)
        check(target, run, table)


# -- a whole job on Spark --------------------------------------------------------------------------------------------------

JOB = Path(__file__).parent / "sql_job.py"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["postgresql", "mariadb"])
def test_a_job_whose_driver_and_workers_are_killed(request: pytest.FixtureRequest, tmp_path: Path, kind: str) -> None:
    target = Target(request.getfixturevalue(kind))
    facts, totals = (
        target.new_table("id bigint, account varchar(20)"),
        target.new_table("account varchar(20) PRIMARY KEY, total bigint"),
    )
    plan = ["K2.sql.prepared@2=self", "K3.sql.before-commit@3=self", "K3.sql.committed@6=self"]
    environment = {
        **os.environ,
        "TIDEGATE_FAULT_HOOK": "tidegate.testing.kill_hook:hook",
        "TIDEGATE_KILL_DIR": str(tmp_path),
        "TIDEGATE_KILL_PLAN": ";".join(plan),
        "TIDEGATE_MASTER": "local[2,4]",
        "SQL_JOB": json.dumps({"kind": kind, "url": target.url, "facts": facts, "totals": totals}),
    }
    codes: list[int] = []
    for number in itertools.count():
        with open(tmp_path / f"log-{number}", "wb") as log:
            codes.append(
                subprocess.run(
                    [sys.executable, str(JOB), str(tmp_path)], stdout=log, stderr=log, env=environment
                ).returncode
            )
        if codes[-1] == 0:
            break
        assert number < 5, (tmp_path / f"log-{number}").read_text()[-4_000:]
    assert codes == [-9, -9, 0], codes
    assert kill_hook.fired(tmp_path) == sorted(plan)
    assert target.rows(facts) == [(n, f"a{n % 7}") for n in range(600)]
    assert target.rows(totals) == [(f"a{k}", sum(range(k, 600, 7))) for k in range(7)]
    assert target.prepared() == []
    logs = "".join(path.read_text() for path in tmp_path.glob("log-*"))
    assert "planted-7f3a-secret" not in logs

"""Commands that show jobs: ``list``, ``info``, ``checkpoints``. Each imports what it needs when it runs."""

from __future__ import annotations

import os
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from tidegate.base.errors import JobOverError, UnreachableError
from tidegate.base.plain_text import count, duration, plain_line
from tidegate.cli.outcome import Json, Verbose, command, print_json, say, table
from tidegate.control import registry
from tidegate.control.client import driver_of, find
from tidegate.control.launch import log_of
from tidegate.control.messages import Operation, OperationStatus
from tidegate.control.place import jobs_below, refreshed
from tidegate.control.registry import DriverLife, JobRecord

if TYPE_CHECKING:
    from tidegate.control.jobs import JobDetails

_SHORT_ID, _LONG_ID = 8, 32


def job_ids(incomplete: str) -> list[tuple[str, str]]:
    """Complete the id of a running job in the shell."""
    live = [record for record in registry.records() if record.life() in (DriverLife.LIVE, DriverLife.UNKNOWN)]
    return [(r.job_id, r.name) for r in registry.newest_runs(live) if r.job_id.startswith(incomplete)]


JobArgument = Annotated[
    str, typer.Argument(metavar="JOB", help="The job's id, or its first characters.", autocompletion=job_ids)
]


@command
def list_jobs(
    every: Annotated[bool, typer.Option("-a", "--all", help="Also jobs that have ended.")] = False,
    directory: Annotated[
        str | None,
        typer.Option("--dir", metavar="DIR", help="All jobs below this directory, of any user."),
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List your running jobs, and with -a those that have ended, failed or died. With --dir list all jobs below a directory for
    checkpoints."""
    if directory is not None:
        return _list_directory(directory, json=json)
    runs = _refreshed(registry.records())
    shown = [record for record in runs if every or record.life() in (DriverLife.LIVE, DriverLife.UNKNOWN)]
    if json:
        return print_json([facts_of(record) for record in shown])
    if not shown:
        return say("no jobs" if every else "no running jobs; tidegate list -a also shows ended jobs")
    ids = _short_ids(runs)
    rows = [(ids[r.job_id], shown_state(r), moment(r.started_ms), _took(r), r.name) for r in shown]
    say(table(("JOB", "STATE", "STARTED", "FOR", "NAME"), rows))


def _list_directory(directory: str, *, json: bool) -> None:
    runs = sorted(jobs_below(_absolute(directory)), key=lambda record: record.started_ms)
    if json:
        return print_json([facts_of(record) for record in runs])
    if not runs:
        return say(plain_line(f"no jobs below {directory}"))
    rows = [
        (r.job_id, shown_state(r), moment(r.started_ms), _took(r), r.owner.host, r.application or "-", r.name)
        for r in runs
    ]
    say(table(("JOB", "STATE", "STARTED", "FOR", "HOST", "APPLICATION", "NAME"), rows))


def _absolute(directory: str) -> str:
    return directory if "://" in directory else os.path.abspath(directory)


def _refreshed(runs: list[JobRecord]) -> list[JobRecord]:
    """Ask storage for the newest runs of jobs on other hosts."""
    newest = {record.run for record in registry.newest_runs(runs)}
    return [refreshed(record) if record.run in newest else record for record in runs]


@command
def info(
    job: Annotated[str, typer.Argument(metavar="JOB|FILE", help="A job's id, or a program.", autocompletion=job_ids)],
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Show a job: what it does, its operators and checkpoints, its failures. Of a Python file, what it would do (see explain)."""
    if job.endswith(".py") or os.path.isfile(job):
        from tidegate.cli.main import explain_program

        return explain_program(job, [], {}, pyflink=False, json=json)
    record = find(job)
    details = _details(record)
    if json:
        return print_json({**facts_of(record), "details": details})
    for line in _lines(record, details):
        say(plain_line(line))


@command
def checkpoints(
    job: Annotated[
        str,
        typer.Argument(
            metavar="JOB|PATH", help="A job's id, its directory, or a checkpoint in it.", autocompletion=job_ids
        ),
    ],
    id: Annotated[int | None, typer.Option("--id", help="Only this checkpoint, operator by operator.")] = None,
    plot: Annotated[bool, typer.Option("--plot", help="Draw durations and sizes as bars.")] = False,
    dispose: Annotated[
        bool, typer.Option("--dispose", help="With --id: delete this checkpoint of a job that has ended.")
    ] = False,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List a job's checkpoints from its history on storage, also after it has ended or its driver has died: the time of each step,
    total and new bytes, records in flight, records that the sources have not read yet, and why a checkpoint failed."""
    from tidegate.cli import checkpoint_list

    if dispose:
        if id is None:
            raise typer.BadParameter(
                "--dispose needs --id with the number of a checkpoint; tidegate checkpoints lists them"
            )
        from tidegate.checkpoint.disposal import dispose as delete

        path = f"{checkpoint_list.directory_of(job)}/chk-{id}"
        delete(path, registry.directories_in_use())
        return print_json({"disposed": path}) if json else say(f"disposed of {path}")
    if plot and (json or id is not None):
        raise typer.BadParameter("--plot shows all checkpoints: omit --id and --json")
    checkpoint_list.show(job, json=json, only=id, plot=plot)


# -- records ---------------------------------------------------------------------------------------------------------------


def shown_state(record: JobRecord) -> str:
    life = record.life()
    if life is DriverLife.DIED:
        return "DIED"
    return f"{record.state} ?" if life is DriverLife.UNKNOWN else record.state


def facts_of(record: JobRecord) -> dict[str, Any]:
    facts: dict[str, Any] = msgspec.to_builtins(record)
    for ours in ("version", "driver", "launch", "seen"):
        del facts[ours]
    log = log_of(record)
    facts["log"] = None if log is None else str(log)
    return {**facts, "life": record.life().value, "state": "DIED" if record.life() is DriverLife.DIED else record.state}


def _short_ids(runs: list[JobRecord]) -> dict[str, str]:
    """Shorten generated ids to as many characters as distinguish them."""
    ids = {record.job_id for record in runs if len(record.job_id) == _LONG_ID}
    length = next((n for n in range(_SHORT_ID, _LONG_ID) if len({id[:n] for id in ids}) == len(ids)), _LONG_ID)
    return {record.job_id: record.job_id[:length] if record.job_id in ids else record.job_id for record in runs}


def _took(record: JobRecord) -> str:
    if record.life() is DriverLife.DIED:
        return ""
    return duration((record.ended_ms or _now_ms()) - record.started_ms, coarse=True)


def _details(record: JobRecord) -> JobDetails | None:
    """Ask the driver; return None if it does not answer."""
    try:
        return driver_of(record).details()
    except (JobOverError, UnreachableError):
        return None


def _lines(record: JobRecord, details: JobDetails | None) -> list[str]:
    where = f"{record.owner}" + (f", http://{record.endpoint}" if record.endpoint and details else "")
    lines = [
        f"job '{record.name}' ({record.job_id}): {shown_state(record)}",
        f"  program     {record.program}",
        f"  driver      {where}",
        f"  started     {moment(record.started_ms)}",
    ]
    if record.ended_ms is not None:
        lines.append(f"  ended       {moment(record.ended_ms)}")
    lines += [f"  savepoint   {done.result}" for done in record.operations if _made_a_savepoint(done)]
    if record.application is not None:
        lines.insert(3, f"  application {record.application}")
    if record.checkpoint_interval_ms is not None:
        lines.append(f"  checkpoints every {duration(record.checkpoint_interval_ms)} in {record.directory}")
    if record.life() is DriverLife.DIED:
        again = "" if record.is_temporary else "; to continue, start the program again with the same tidegate.job-id"
        lines.append(f"  died        its driver ended without a report{again}")
    if (log := log_of(record)) is not None:
        lines.append(f"  log         {log}")
    if record.error is not None:
        lines += ("  error       " + record.error.replace("\n", "\n              ")).split("\n")
    return lines + (_live_lines(details) if details is not None else [])


def _made_a_savepoint(done: Operation) -> bool:
    return done.status is OperationStatus.SUCCEEDED and "/savepoint-" in (done.result or "")


def _live_lines(details: JobDetails) -> list[str]:
    from tidegate.cli.job_lines import copying_line

    totals = details.totals
    lines = [
        f"  guarantee   {details.guarantee}",
        *(f"              {p['source']} -> {p['sink'] or '(no sink)'}: {p['guarantee']}" for p in details.paths),
        f"  so far      {count(totals.records, 'record')} in {count(totals.rounds, 'round')}, "
        f"{count(totals.checkpoints, 'checkpoint')}, "
        f"{details.records_per_second:,.0f} records/s, attempt {len(details.attempts)}, "
        f"local state rebuilt {count(totals.rebuilds, 'time')}",
    ]
    done = [c for c in details.checkpoints if 7 in c.passed_ms]
    if done:
        lines.append(f"  latest      checkpoint {done[-1].checkpoint_id}, {count(done[-1].size, 'byte')}")
    copying = copying_line(details.checkpoints)
    if copying is not None:
        lines.append(f"  under way   {copying}")
    rows = [
        (str(o.id), o.label, o.uid or "-", str(o.parallelism), _number(o.records_in), _number(o.records_out))
        for o in details.operators
    ]
    return [*lines, "", *table(("ID", "OPERATOR", "UID", "PARALLELISM", "IN", "OUT"), rows).splitlines()]


def moment(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).astimezone().strftime("%Y-%m-%d %H:%M:%S")


def _number(value: int | None) -> str:
    return "" if value is None else f"{value:,}"


def _now_ms() -> int:
    return time.time_ns() // 1_000_000

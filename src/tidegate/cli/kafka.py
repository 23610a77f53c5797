"""What can be seen and done about a job's Kafka transactions: ``tidegate kafka transactions JOB|PATH``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.checkpoint.lease import Lease
from tidegate.checkpoint.lease_records import DIRECTORY
from tidegate.common.clock import SystemClock
from tidegate.common.configuration import effective
from tidegate.common.errors import ConfigurationError, TidegateError
from tidegate.common.files import Files
from tidegate.common.global_configuration import load
from tidegate.common.options import CHECKPOINT_DIR

if TYPE_CHECKING:  # it needs Kafka's client, which is an extra
    from tidegate.connectors.kafka.inspection import JobTransactions, Seen

app = typer.Typer(help="Kafka transactions of jobs.", no_args_is_help=True)

_HEAD = ("TRANSACTION", "PRODUCER", "EPOCH", "STATE", "AGE", "CHECKPOINTS", "RECORDS")


@app.callback()
def _root() -> None:
    """Kafka transactions of jobs."""


@app.command()
def transactions(
    job: Annotated[str, typer.Argument(metavar="JOB|PATH", help="A job id, or the job's directory.")],
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit what the latest checkpoint holds, as a restart would.")
    ] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Abort what is open and in no checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Act though the job lives.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="For programs.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", help="Client properties (security), lines of key=value.")
    ] = None,
) -> None:
    """List the transactions of a job's sinks: what is open, and which checkpoints hold it."""
    try:
        from tidegate.connectors.kafka.inspection import JobTransactions

        found = JobTransactions(directory_of(job), _properties(config), SystemClock())
        if commit or abort:
            _act(found, commit=commit, abort=abort, force=force)
        seen = found.look()
    except TidegateError as error:
        typer.echo(f"{type(error).__name__}: {error}", err=True)
        raise typer.Exit(1) from None
    typer.echo(json.dumps([each.plain() for each in seen], indent=2) if as_json else _table(seen))


def _act(found: JobTransactions, *, commit: bool, abort: bool, force: bool) -> None:
    lease: Lease | None = None if force else found.claim()
    try:
        if commit:
            found.commit(lease)
        if abort:
            found.abort(lease)
    finally:
        if lease is not None:
            lease.release()


def directory_of(job: str) -> str:
    """The job's directory: the path itself, or the id below the configured directory of checkpoints."""
    if Files(job).exists(DIRECTORY):
        return job
    base = effective(load()).get(CHECKPOINT_DIR.key)
    if base and "/" not in job and Files(f"{base.rstrip('/')}/{job}").exists(DIRECTORY):
        return f"{base.rstrip('/')}/{job}"
    raise ConfigurationError(
        "A job is named by its directory, or by its id below execution.checkpointing.dir",
        found=f"no job {job!r}" + (f" in {base}" if base else ", and no such directory is configured"),
        cure="give the directory that holds its chk-<n>",
    )


def _properties(config: Path | None) -> dict[str, str]:
    if config is None:
        return {}
    if not config.is_file():
        raise ConfigurationError("--config takes a file of client properties", found=f"no file {config}")
    lines = [line.strip() for line in config.read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}


def _table(seen: list[Seen]) -> str:
    if not seen:
        return "no transactions: nothing is open, and no checkpoint holds any"
    rows = [_HEAD, *map(_row, seen)]
    widths = [max(len(row[n]) for row in rows) for n in range(len(_HEAD))]
    return "\n".join("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)


def _row(seen: Seen) -> tuple[str, ...]:
    age = "-" if seen.age_ms is None else f"{seen.age_ms / 1000:.0f} s"
    if seen.age_ms is not None and seen.timeout_ms is not None:
        age += f" of {seen.timeout_ms / 1000:.0f}"
    held = ", ".join(map(str, seen.checkpoints)) or "none"
    records = "-" if seen.records is None else f"{seen.records:,}"
    return seen.transactional_id, str(seen.producer_id), str(seen.epoch), seen.state, age, held, records

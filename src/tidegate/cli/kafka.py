"""Commands for Kafka: ``tidegate kafka transactions`` of a job, and ``tidegate dev kafka``, a broker for development."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tidegate.base.clock import SystemClock
from tidegate.base.errors import ConfigurationError, TidegateError
from tidegate.checkpoint.lease import Lease
from tidegate.cli.jobs import job_ids
from tidegate.cli.outcome import Json, Verbose, command, print_json, say, table
from tidegate.connectors.kafka.dev_broker import DEFAULT_PORT, DevBroker, home

if TYPE_CHECKING:  # the module needs Kafka's client, which is an extra
    from tidegate.connectors.kafka.inspection import JobTransactions, Seen

app = typer.Typer(help="Kafka transactions of jobs.", no_args_is_help=True)
dev = typer.Typer(help="Servers for development, on loopback only.", no_args_is_help=True)
broker = typer.Typer(help="A Kafka broker of one node.", no_args_is_help=True)
dev.add_typer(broker, name="kafka")

Port = Annotated[int, typer.Option("--port", help="The port on 127.0.0.1.")]
NOT_RUNNING = 3

_HEAD = ("TRANSACTION", "PRODUCER", "EPOCH", "STATE", "AGE", "CHECKPOINTS", "RECORDS")


@app.callback()
def _root() -> None:
    """Kafka transactions of jobs."""


@app.command()
@command
def transactions(
    job: Annotated[
        str | None, typer.Argument(metavar="JOB|PATH", help="A job's id, or its directory.", autocompletion=job_ids)
    ] = None,
    commit: Annotated[
        bool, typer.Option("--commit", help="Commit what the latest checkpoint holds, as a restart would.")
    ] = False,
    abort: Annotated[bool, typer.Option("--abort", help="Abort what is open and in no checkpoint.")] = False,
    force: Annotated[bool, typer.Option("--force", help="Act even if the job runs.")] = False,
    prefix: Annotated[
        str | None,
        typer.Option("--prefix", help="Without the job's directory: the transactional id prefix of its sink."),
    ] = None,
    servers: Annotated[
        str | None, typer.Option("--bootstrap-servers", help="Where the brokers are; with --prefix.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option("--config", help="Client properties (security), lines of key=value.")
    ] = None,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """List the transactions of a job's sinks: what is open, and which checkpoints hold it."""
    from tidegate.cli.checkpoint_list import directory_of
    from tidegate.connectors.kafka.inspection import JobTransactions

    properties = _properties(config) | ({"bootstrap.servers": servers} if servers else {})
    seen: list[Seen]
    nothing = "no transaction is open, and no checkpoint holds one"
    if prefix is not None:
        seen = _below(prefix, job, properties, commit=commit, abort=abort, force=force)
    elif job is not None:
        found = JobTransactions(directory_of(job), properties, SystemClock())
        if found.ended_with is not None:
            nothing = f"the job has ended ({found.ended_with.value}) without a checkpoint: its sinks have ended all transactions"
        elif commit or abort:
            _act(found, commit=commit, abort=abort, force=force)
        seen = found.look()
    else:
        raise ConfigurationError(
            "The command needs a job or a transactional id prefix",
            found="neither a job nor --prefix",
            cure="give the job's id or directory; or --prefix PREFIX --bootstrap-servers HOST:PORT",
        )
    if json:
        print_json([each.plain() for each in seen])
    else:
        say(table(_HEAD, list(map(_row, seen))) if seen else nothing)


def _below(
    prefix: str, job: str | None, properties: dict[str, str], *, commit: bool, abort: bool, force: bool
) -> list[Seen]:
    from tidegate.connectors.kafka.inspection import PrefixTransactions

    if "bootstrap.servers" not in properties or commit or (abort and not force):
        missing = "bootstrap.servers" not in properties
        raise ConfigurationError(
            "--prefix shows open transactions on the brokers, and aborts them only with --force: without the job's directory, no "
            "checkpoint says what to commit and no lease says whether the job runs",
            found="no --bootstrap-servers" if missing else "--commit" if commit else "--abort without --force",
            cure="--bootstrap-servers HOST:PORT" if missing else "give the job's directory, or --abort --force",
        )
    found = PrefixTransactions(properties, prefix, job, SystemClock())
    if abort:
        found.abort()
    return found.look()


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


def _properties(config: Path | None) -> dict[str, str]:
    if config is None:
        return {}
    if not config.is_file():
        raise ConfigurationError("--config names no file", found=f"no file {config}")
    lines = [line.strip() for line in config.read_text().splitlines()]
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    return {key.strip(): value.strip() for key, _, value in pairs}


def _row(seen: Seen) -> tuple[str, ...]:
    age = "-" if seen.age_ms is None else f"{seen.age_ms / 1000:.0f} s"
    if seen.age_ms is not None and seen.timeout_ms is not None:
        age += f" of {seen.timeout_ms / 1000:.0f}"
    held = ", ".join(map(str, seen.checkpoints)) or "none"
    records = "-" if seen.records is None else f"{seen.records:,}"
    return seen.transactional_id, str(seen.producer_id), str(seen.epoch), seen.state, age, held, records


# -- a broker for development ----------------------------------------------------------------------------------------------


def _broker(port: int) -> DevBroker:
    return DevBroker(home() / "dev" / f"kafka-{port}", port)


@broker.command()
def start(port: Port = DEFAULT_PORT) -> None:
    """Start the broker; its jars are fetched the first time. Topics survive a stop."""
    found = _broker(port)
    if found.pid is not None:
        say(f"Kafka runs on {found.bootstrap_servers} (process {found.pid})")
        return
    try:
        found.start(lambda step: say(f"  {step}", err=True))
    except TidegateError as error:
        say(str(error), err=True)
        raise typer.Exit(1) from None
    say(f"Kafka runs on {found.bootstrap_servers} (process {found.pid})")


@broker.command()
def stop(
    port: Port = DEFAULT_PORT,
    delete: Annotated[bool, typer.Option("--delete", help="Delete its topics too.")] = False,
) -> None:
    """Stop the broker in an orderly way."""
    found = _broker(port)
    if found.pid is None:
        say(f"no Kafka for development runs on {found.bootstrap_servers}")
    else:
        found.stop()
        say("stopped")
    if delete:
        found.delete()


@broker.command()
def status(port: Port = DEFAULT_PORT) -> None:
    """Show whether the broker runs; exit code 3 if it does not."""
    found = _broker(port)
    if found.pid is None:
        say(f"no Kafka for development runs on {found.bootstrap_servers}")
        raise typer.Exit(NOT_RUNNING)
    say(f"Kafka runs on {found.bootstrap_servers} (process {found.pid}), its log: {found.directory}/server.log")

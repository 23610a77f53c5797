"""Commands that tell a running job something: ``checkpoint``, ``savepoint``, ``stop``, ``cancel``."""

from __future__ import annotations

import os
from typing import Any

import msgspec
import typer

from tidegate.cli.job_lines import duration
from tidegate.cli.jobs import JobArgument
from tidegate.cli.outcome import Json, Verbose, command, print_json
from tidegate.cli.terminal import Terminal
from tidegate.control.client import DriverClient, find
from tidegate.control.messages import CancelRequest, Operation


@command
def checkpoint(job: JobArgument, json: Json = False, verbose: Verbose = False) -> None:
    """Take a checkpoint now, due or not. Prints its id when it is complete and committed."""
    done = tell(job, "checkpoint", "checkpoints")
    _say(done, json, f"checkpoint {done.result} is complete")


@command
def cancel(
    job: JobArgument,
    json: Json = False,
    verbose: Verbose = False,
) -> None:
    """Cancel a job: it is over for good. Its checkpoints stay or go as the retention says."""
    done = tell(job, "cancel", "cancel", CancelRequest())
    _say(done, json, f"the job is {done.result}")


def tell(job: str, what: str, path: str, body: msgspec.Struct | None = None) -> Operation:
    """Begin it and wait for its end, shown on a terminal."""
    driver = DriverClient(find(job))
    begun = driver.begin(path, body)
    terminal = Terminal.of(os.environ)
    name = f"{what} of job '{driver.record.name}' ({driver.record.job_id})"

    def show(seconds: float) -> None:
        if terminal is not None:
            terminal.show(f"{name}: {duration(round(seconds * 1000), coarse=True)}")

    try:
        return driver.wait(begun, show)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(f"{name} goes on without you (operation {begun.id})") from None
    finally:
        if terminal is not None:
            terminal.close()


def _say(done: Operation, json: bool, text: str) -> Any:
    return print_json(done) if json else typer.echo(text)

"""How a command ends: what it prints, as text or JSON, and its exit code."""

from __future__ import annotations

import functools
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from tidegate.base import errors
from tidegate.base.errors import TidegateError
from tidegate.base.plain_text import plain, plain_line
from tidegate.base.portable_errors import RemoteTraceback, trace
from tidegate.cli import pipes
from tidegate.control.launch import tell_launcher

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show stack traces of failures.")]


class ExitCode(IntEnum):
    """What scripts can rely on; ``docs/operation.md`` has the same list."""

    OK = 0
    FAILED = 1
    USAGE = 2
    ENDED = 3
    UNKNOWN_JOB = 4
    AMBIGUOUS_JOB = 5
    REFUSED = 6
    UNREACHABLE = 7
    DIRECTORY_IN_USE = 8
    BAD_SNAPSHOT = 9
    BAD_PROGRAM = 10
    DIED = 11
    NO_TARGET = 12
    SNAPSHOT_IN_USE = 13
    CANCELLED = 14
    NOT_IN_SNAPSHOT = 15
    DAMAGED_SNAPSHOT = 16
    NEWER_FORMAT = 17
    SUSPENDED = 18
    TIMED_OUT = 124
    INTERRUPTED = 130
    BROKEN_PIPE = pipes.EXIT_CODE


_CODES: list[tuple[type[TidegateError], ExitCode]] = [
    (errors.AmbiguousJobError, ExitCode.AMBIGUOUS_JOB),
    (errors.UnknownJobError, ExitCode.UNKNOWN_JOB),
    (errors.DriverDiedError, ExitCode.DIED),
    (errors.JobOverError, ExitCode.ENDED),
    (errors.UnreachableError, ExitCode.UNREACHABLE),
    (errors.NoTargetError, ExitCode.NO_TARGET),
    (errors.SnapshotInUseError, ExitCode.SNAPSHOT_IN_USE),
    (errors.RefusedError, ExitCode.REFUSED),
    (errors.LeaseError, ExitCode.DIRECTORY_IN_USE),
    (errors.NewerFormatError, ExitCode.NEWER_FORMAT),
    (errors.RestoreError, ExitCode.BAD_SNAPSHOT),
    (errors.CorruptFileError, ExitCode.DAMAGED_SNAPSHOT),
    (errors.SnapshotError, ExitCode.NOT_IN_SNAPSHOT),
    (errors.ConfigurationError, ExitCode.BAD_PROGRAM),
    (errors.ProgramError, ExitCode.BAD_PROGRAM),
    (errors.ArgumentTypeError, ExitCode.BAD_PROGRAM),
    (errors.JobCancelledError, ExitCode.CANCELLED),
]
"""The first that fits."""


def exit_code(error: BaseException) -> ExitCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def command(act: Callable[..., Any]) -> Callable[..., Any]:
    """Of a command with the options ``verbose`` and maybe ``json``: its failures become a message and an exit code."""

    @functools.wraps(act)
    def guarded(**options: Any) -> None:
        try:
            with pipes.ends_quietly():
                act(**options)
        except (typer.Exit, typer.BadParameter):
            raise
        except KeyboardInterrupt as interrupted:
            say(str(interrupted) or "interrupted", err=True)
            sys.exit(ExitCode.INTERRUPTED)
        except Exception as error:
            fail(error, verbose=options.get("verbose", False), json=options.get("json", False))

    return guarded


def fail(error: Exception, *, verbose: bool, json: bool = False) -> NoReturn:
    """Of an error of ours the message, and what it was caused by; of any other the traceback of the user's code. The whole stack
    only when asked for."""
    code = exit_code(error)
    tell_launcher(readable(error))
    if verbose:
        say("".join(traceback.format_exception(error)), err=True, nl=False)
    elif json:
        say(as_line({"error": type(error).__name__, "message": str(error), "exit_code": int(code)}), err=True)
    else:
        say(readable(error), err=True, nl=False)
    sys.exit(code)


def readable(error: BaseException) -> str:
    if not isinstance(error, TidegateError):
        return trace(error)
    return "".join(f"{line}\n" for line in (f"{type(error).__name__}: {error}", *_causes(error)))


def _causes(error: BaseException) -> list[str]:
    """Those that say something new: a failed job has the message of why in its own."""
    told, cause, lines = str(error), error.__cause__, []
    while cause is not None and not isinstance(cause, RemoteTraceback):
        text = str(cause)
        if text not in told or not isinstance(cause, TidegateError):
            text = text if isinstance(cause, TidegateError) else text.replace("\n", "\n  ")  # no line of its own
            lines.append(f"caused by {type(cause).__name__}" + (f": {text}" if text else ""))
        cause = cause.__cause__
    return lines


@contextmanager
def outcomes_at_the_end() -> Iterator[None]:
    """Behind all that a program has printed: the jobs it has run, as a line of JSON. Why it failed is said on standard error."""
    from tidegate.cli.terminal import remembered_jobs  # brings the runtime along

    jobs = remembered_jobs()
    try:
        yield
    finally:
        views = [job.view() for job in jobs]
        told = [
            {
                "job_id": view.job_id,
                "name": view.name,
                "state": view.status.name,
                "started_ms": view.created_ms,
                "ended_ms": view.ended_ms,
                "records": view.totals.records,
                "checkpoints": view.totals.checkpoints,
            }
            for view in views
        ]
        say(as_line({"jobs": told}))


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print. All that commands print goes through here: names, keys, values and errors may come from strangers."""
    typer.echo(plain(text), err=err, nl=nl)


def as_line(value: Any) -> str:
    """JSON in one line."""
    return msgspec.json.encode(value).decode()


def print_json(value: Any) -> None:
    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as they must be; the last one may be of any width."""
    lines = [head, *([plain_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )

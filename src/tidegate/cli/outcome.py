"""How a command ends: what it prints, as text or JSON, and its exit code."""

from __future__ import annotations

import functools
import os
import select
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from enum import IntEnum
from typing import Annotated, Any, NoReturn

import msgspec
import typer

from tidegate.base import errors
from tidegate.base.errors import OutputClosedError, TidegateError
from tidegate.base.plain_text import plain, plain_line
from tidegate.base.portable_errors import RemoteTraceback, trace
from tidegate.control.launch import report_to_launcher

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Show stack traces of failures.")]


class ExitCode(IntEnum):
    """Scripts rely on these codes; ``docs/operation.md`` has the same list."""

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
    BROKEN_PIPE = 128 + signal.SIGPIPE


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
"""The first class that fits decides."""


def exit_code(error: BaseException) -> ExitCode:
    return next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)


def command(act: Callable[..., Any]) -> Callable[..., Any]:
    """Make a message and an exit code of a command's failures. The command has the option ``verbose`` and may have ``json``."""

    @functools.wraps(act)
    def guarded(**options: Any) -> None:
        try:
            with ends_quietly():
                act(**options)
        except (typer.Exit, typer.BadParameter):
            raise
        except KeyboardInterrupt as interrupted:
            say(str(interrupted) or "interrupted", err=True)
            sys.exit(ExitCode.INTERRUPTED)
        except Exception as error:
            fail(error, verbose=options.get("verbose", False), json=options.get("json", False))

    return guarded


@contextmanager
def ends_quietly() -> Iterator[None]:
    """End a command quietly if nobody reads its output any more (``| head``), with the exit code of a process that SIGPIPE ended.

    Output is flushed here, not when the interpreter ends: an error there could only be shown.
    """
    try:
        try:
            yield
        finally:
            _flush()
    except BaseException as error:
        gone = [stream for stream in (sys.stdout, sys.stderr) if _has_no_reader(stream)]
        if not gone or not _is_about_a_pipe(error):
            raise
        for stream in gone:
            _divert(stream)
        sys.exit(ExitCode.BROKEN_PIPE)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, AttributeError):  # closed or missing
            stream.flush()


def _is_about_a_pipe(error: BaseException | None) -> bool:
    """Return whether a broken pipe is the error or its cause: a job fails if its records cannot be printed."""
    while error is not None:
        if isinstance(error, BrokenPipeError | OutputClosedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_no_reader(stream: Any) -> bool:
    """Return whether the stream is a pipe whose other end is closed. Nothing is written to find out."""
    try:
        looked = select.poll()
        looked.register(stream.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in looked.poll(0))
    except (AttributeError, OSError, ValueError):  # not a stream of the operating system
        return False


def _divert(stream: Any) -> None:
    """Discard what is still to be written."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)


def fail(error: Exception, *, verbose: bool, json: bool = False) -> NoReturn:
    """Print the error and exit. An error of Tidegate gives its message and its causes, any other the traceback of the user's code.
    The whole stack is printed only with ``verbose``."""
    code = exit_code(error)
    report_to_launcher(readable(error))
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
    """Return the causes that say something new: the message of a failed job contains that of its cause."""
    shown, cause, lines = str(error), error.__cause__, []
    while cause is not None and not isinstance(cause, RemoteTraceback):
        text = str(cause)
        if text not in shown or not isinstance(cause, TidegateError):
            text = text if isinstance(cause, TidegateError) else text.replace("\n", "\n  ")  # part of one line
            lines.append(f"caused by {type(cause).__name__}" + (f": {text}" if text else ""))
        cause = cause.__cause__
    return lines


@contextmanager
def outcomes_at_the_end() -> Iterator[None]:
    """Print the jobs that a program has run as a line of JSON, after all output of the program. Errors go to standard error."""
    from tidegate.cli.terminal import remembered_jobs  # imports the runtime

    jobs = remembered_jobs()
    try:
        yield
    finally:
        views = [job.view() for job in jobs]
        ended = [
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
        say(as_line({"jobs": ended}))


def say(text: str, *, err: bool = False, nl: bool = True) -> None:
    """Print text without escape sequences. Every command prints with this: names, values and errors may come from strangers."""
    typer.echo(plain(text), err=err, nl=nl)


def as_line(value: Any) -> str:
    """Write JSON in one line."""
    return msgspec.json.encode(value).decode()


def print_json(value: Any) -> None:
    say(msgspec.json.format(msgspec.json.encode(value), indent=2).decode())


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Lay out columns as wide as their longest cell."""
    lines = [head, *([plain_line(cell) for cell in row] for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    return "\n".join(
        "  ".join(text.ljust(width) for text, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )

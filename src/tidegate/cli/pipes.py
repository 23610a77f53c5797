"""A command whose output nobody reads any more (``| head``) ends quietly, with the exit code of one that SIGPIPE has ended."""

from __future__ import annotations

import os
import select
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from tidegate.base.errors import OutputClosedError

EXIT_CODE = 128 + signal.SIGPIPE


@contextmanager
def ends_quietly() -> Iterator[None]:
    """Around a command. What it has printed is written here, not when the interpreter ends: there an error could only be shown."""
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
        sys.exit(EXIT_CODE)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(ValueError, AttributeError):  # closed, or none
            stream.flush()


def _is_about_a_pipe(error: BaseException | None) -> bool:
    """Also a job that failed because its records could not be printed."""
    while error is not None:
        if isinstance(error, BrokenPipeError | OutputClosedError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _has_no_reader(stream: Any) -> bool:
    """Of a pipe whose other end is closed. Nothing is written to find out."""
    try:
        looked = select.poll()
        looked.register(stream.fileno(), select.POLLOUT)
        return any(event & select.POLLERR for _, event in looked.poll(0))
    except (AttributeError, OSError, ValueError):  # no stream of the system's
        return False


def _divert(stream: Any) -> None:
    """What is still to be written goes nowhere, and raises nothing."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, stream.fileno())
    os.close(nowhere)

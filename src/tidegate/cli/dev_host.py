"""The process of a development session that runs programs, one after another, with one Spark context (``dev_session.py``)."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tidegate.base import former_names
from tidegate.cli.dev_session import INTERRUPT, Done, Request, receive, seen, send
from tidegate.cli.outcome import ExitCode, command
from tidegate.cli.script import run_script
from tidegate.common import configuration, global_configuration

_INSTALLED = tuple({str(Path(place).resolve()) for place in (sys.prefix, sys.base_prefix, sys.exec_prefix)})


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as session:
        while True:
            try:
                request, received = receive(session, Request, 4)
            except EOFError:
                return  # the session has ended, or wants another host
            assert isinstance(request, Request)
            *streams, client = received
            with socket.socket(fileno=client) as connection:
                code, files = _run(request, streams, connection)
                with suppress(OSError):  # the client has gone
                    connection.sendall(bytes([code & 0xFF]))
            send(session, Done(files), [])


def _run(request: Request, streams: list[int], client: socket.socket) -> tuple[int, dict[str, tuple[int, int]]]:
    """Run the program as a process of its own would, and bring this process back to what it was. Only Spark stays."""
    modules, path, handlers = set(sys.modules), list(sys.path), list(logging.root.handlers)
    os.chdir(request.directory)
    os.environ.clear()
    os.environ.update(request.environment)
    over = threading.Event()
    threading.Thread(target=_heed, args=(client, over), daemon=True).start()
    try:
        with _streams_of_the_client(streams):
            code = _exit_code(lambda: _program(request))
    finally:
        over.set()
        files = _forget_modules(modules)
        sys.path[:] = path
        logging.root.handlers[:] = handlers
        configuration.noticed.clear()
        former_names.noticed.clear()
        global_configuration.announced.clear()
    return code, files


@contextmanager
def _streams_of_the_client(streams: list[int]) -> Iterator[None]:
    """Give Python the client's streams. The descriptors 0 to 2 stay those of the session: Spark's processes inherit them and live
    longer than the client, and whoever reads the client's output waits until nobody can write to it any more."""
    before = sys.stdin, sys.stdout, sys.stderr
    for stream in streams:
        os.set_inheritable(stream, False)
    own = [os.fdopen(stream, mode, errors="backslashreplace") for stream, mode in zip(streams, "rww", strict=True)]
    for written in own[1:]:
        written.reconfigure(line_buffering=written.isatty() or written is own[2])  # type: ignore[attr-defined]
    sys.stdin, sys.stdout, sys.stderr = own
    try:
        yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = before
        for stream_of in own:
            with suppress(OSError):  # nobody reads it any more
                stream_of.close()


def _program(request: Request) -> None:
    global_configuration.set_dynamic_properties(request.properties)
    command(run_script)(script=request.script, arguments=request.arguments, pyflink=request.pyflink)


def _exit_code(act: Callable[[], None]) -> int:
    try:
        act()
    except SystemExit as ending:
        if ending.code is None or isinstance(ending.code, int):
            return int(ending.code or 0)
        print(ending.code, file=sys.stderr)  # as Python does for sys.exit("text")
        return ExitCode.FAILED
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _heed(client: socket.socket, over: threading.Event) -> None:
    """Interrupt the program if its client is interrupted, or has gone."""
    while not over.is_set():
        try:
            received = client.recv(1)
        except OSError:
            return
        if over.is_set():
            return
        os.kill(os.getpid(), signal.SIGINT)
        if received != INTERRUPT:
            return


def _forget_modules(before: set[str]) -> dict[str, tuple[int, int]]:
    """Forget the modules beside the program, so that the next run reads them again, and return their files."""
    files = []
    sys.modules.pop(
        "__mp_main__", None
    )  # the program itself: multiprocessing names it so when a program imports it first
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None)
        if file is None or name.split(".")[0] == "tidegate" or str(Path(file).resolve()).startswith(_INSTALLED):
            continue
        files.append(str(Path(file).resolve()))
        del sys.modules[name]
    return seen(files)


if __name__ == "__main__":
    main()

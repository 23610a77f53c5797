"""Remote storage of the bench: directories of this machine behind fsspec, as quick as they are, or slow on purpose, and counted.

``bench://``, ``slowfile://`` and ``slowcall://`` with a path. Every process of a job must know them before it meets such an
address: ``TIDEGATE_FAULT_HOOK=storages:no_fault`` makes each import this module when it starts.
"""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import fsspec
from fsspec.implementations.local import LocalFileSystem

FILE_SECONDS, CALL_SECONDS = 2.0, 0.05
CALLS = "TIDEGATE_BENCH_CALLS"
"""The environment variable that names a directory: every process notes there what it asks of storage, a line for each call."""

_in_a_hurry = threading.Event()
_here = threading.local()


def no_fault(name: str, where: dict[str, Any]) -> None:
    """Nothing goes wrong here."""


def hurry(yes: bool) -> None:
    """In this process nothing is slow any more, or again: a run that has been measured need not end slowly."""
    (_in_a_hurry.set if yes else _in_a_hurry.clear)()


def calls_noted() -> list[str]:
    """What all processes have asked of storage since the directory was made: ``call kind-of-file``. Nothing, if nobody counts."""
    directory = os.environ.get(CALLS)
    return [line for file in Path(directory).iterdir() for line in file.read_text().splitlines()] if directory else []


def _one_call(method: str, *, writes: bool = False) -> Callable[..., Any]:
    """One request to a server, whatever other methods of the local file system it is made of."""
    local: Callable[..., Any] = getattr(LocalFileSystem, method)

    @functools.wraps(local)
    def call(system: BenchFileSystem, path: Any, *arguments: Any, **options: Any) -> Any:
        if getattr(_here, "inside", False):
            return local(system, path, *arguments, **options)
        _note(method, str(path))
        is_file = writes and (method != "open" or "w" in (arguments[0] if arguments else options.get("mode", "rb")))
        _in_a_hurry.wait(system.call_seconds + (system.file_seconds if is_file else 0.0))
        _here.inside = True
        try:
            return local(system, path, *arguments, **options)
        finally:
            _here.inside = False

    return call


def _note(method: str, path: str) -> None:
    directory = os.environ.get(CALLS)
    if directory:
        kinds = {"/shared/": "state file", "/lease/": "lease", "_metadata": "metadata", "history.json": "history"}
        kind = next((kind for part, kind in kinds.items() if part in path), "directory")
        with open(f"{directory}/{os.getpid()}-{threading.get_ident()}", "a") as file:
            file.write(f"{method} {kind}\n")


class BenchFileSystem(LocalFileSystem):  # type: ignore[misc]
    protocol = "bench"
    call_seconds = file_seconds = 0.0

    makedirs, exists, info, size, isdir = map(_one_call, ("makedirs", "exists", "info", "size", "isdir"))
    ls, find, cat_file, rm_file, rm, mv = map(_one_call, ("ls", "find", "cat_file", "rm_file", "rm", "mv"))
    pipe_file, open = _one_call("pipe_file", writes=True), _one_call("open", writes=True)


class SlowFiles(BenchFileSystem):
    """Two seconds for every file that is written."""

    protocol, file_seconds = "slowfile", FILE_SECONDS


class SlowCalls(BenchFileSystem):
    """50 ms for every call."""

    protocol, call_seconds = "slowcall", CALL_SECONDS


for _system in (BenchFileSystem, SlowFiles, SlowCalls):
    fsspec.register_implementation(_system.protocol, _system, clobber=True)

"""Inject faults into real processes: SIGKILL at the n-th passing of a fault point, once per plan, over all restarts.

Set the hook in the environment of the job, so that driver and Python workers have it::

    TIDEGATE_FAULT_HOOK=tidegate.testing.kill_hook:hook
    TIDEGATE_KILL_DIR=/some/dir                          counters and markers live here
    TIDEGATE_KILL_PLAN=C6.published@2=self;T2.after-segment@5=driver;storage.publish[_metadata]@3=self

An entry is ``point@n=target``, or ``point[text]@n=target`` to count only passings whose place contains the text.
Targets:

- ``self``: the process that passes the point;
- ``driver``: the driver above the worker that passes the point; ``above``: the JVM between the two;
- ``jvm``: the Java process below the driver that passes the point; ``workers``: all Python workers below the driver;
- ``stop``: SIGSTOP, until someone continues the process;
- ``pause:ms``: the passing thread waits for this time;
- ``raise``: an OSError (disk full).
"""

from __future__ import annotations

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil


def hook(name: str, where: dict[str, Any]) -> None:
    directory = Path(os.environ["TIDEGATE_KILL_DIR"])
    for number, entry in enumerate(os.environ.get("TIDEGATE_KILL_PLAN", "").split(";")):
        point, _, rest = entry.partition("@")
        point, _, text = point.partition("[")
        if point == name and text.removesuffix("]") in str(where):
            wanted, _, target = rest.partition("=")
            if _passings(directory, number) == int(wanted):
                (directory / f"fired-{number}").write_text(f"{entry} pid {os.getpid()} {where}\n")
                _strike(target)


def fired(directory: Path) -> list[str]:
    """Return the entries that really fired; a test that injected nothing must fail."""
    return sorted(path.read_text().split()[0] for path in directory.glob("fired-*"))


def _passings(directory: Path, number: int) -> int:
    """Return how often the point of this entry was passed, over all processes and restarts: each passing appends one
    byte, and its position is the count.

    Appends are atomic, and the position after one's own byte belongs to no other process.
    """
    fd = os.open(directory / f"count-{number}", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        os.write(fd, b".")
        return os.lseek(fd, 0, os.SEEK_CUR)
    finally:
        os.close(fd)


def _strike(target: str) -> None:
    kind, _, argument = target.partition(":")
    if kind == "self":
        os.kill(os.getpid(), signal.SIGKILL)
    elif kind == "driver":
        _kill_driver()
    elif kind == "above":
        next(process for process in psutil.Process().parents() if "java" in process.name()).kill()
    elif kind == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif kind == "pause":
        time.sleep(int(argument) / 1000)
    elif kind == "raise":
        raise OSError(errno.ENOSPC, "No space left on device (injected)")
    elif kind == "jvm":
        _kill_children("java")
    elif kind == "workers":
        _kill_children("python")


def _kill_driver() -> None:
    above = psutil.Process().parents()
    java = next(index for index, process in enumerate(above) if "java" in process.name())
    if "python" in above[java + 1].name():  # otherwise it is dead already, and init has adopted its JVM
        above[java + 1].kill()


def _kill_children(name: str) -> None:
    below = psutil.Process().children(recursive=True)
    victims = [p for p in below if name in p.name() and (name != "python" or "pyspark.daemon" in " ".join(p.cmdline()))]
    for process in victims:
        process.kill()
    if not victims:
        raise RuntimeError(f"no {name} process to kill")

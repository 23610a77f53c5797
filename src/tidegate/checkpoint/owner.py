"""The owner of a lease: a process, distinguished from a later process with the same pid."""

from __future__ import annotations

import functools
import os
import socket
from pathlib import Path

import msgspec


class Owner(msgspec.Struct, frozen=True):
    """A process. ``boot`` names the running system and its pid space, ``started`` the start time of the process in it.

    Both are empty on a system without ``/proc``.
    """

    host: str
    pid: int
    started: str = ""
    boot: str = ""

    def __str__(self) -> str:
        return f"process {self.pid} on {self.host}"


def this_process() -> Owner:
    return Owner(socket.gethostname(), os.getpid(), _started(os.getpid()) or "", _boot())


_dead: set[Owner] = set()


def declare_dead(owner: Owner) -> None:
    """Note that a cluster has declared the process dead, and has started this one in its place. This process then claims the job
    at once. That is safe if the process lives all the same: the lease fences it."""
    if owner != this_process():
        _dead.add(owner)


def is_here(owner: Owner) -> bool:
    """Whether the process belongs to this running system and its pid space. Two hosts may share a name, but not a boot."""
    return (owner.host, owner.boot) == (socket.gethostname(), _boot())


def is_alive(owner: Owner) -> bool | None:
    """Return whether the process is alive, if this process can see it. None for a process of another host, or a stopped one
    (SIGSTOP): then its heartbeat says how long it has been silent.
    """
    if owner in _dead:
        return False
    if not is_here(owner):
        return None
    if not owner.started:
        return None if _exists(owner.pid) else False
    if _started(owner.pid) != owner.started:
        return False
    return None if _stat(owner.pid)[:1] == ["T"] else True


def _started(pid: int) -> str | None:
    """Return the start time in ticks since boot; None if there is no such process, or it has ended and waits for its parent."""
    fields = _stat(pid)
    return None if not fields or fields[0] in "ZX" else fields[19]


def _stat(pid: int) -> list[str]:
    """Return the fields of ``/proc/<pid>/stat`` from the process state on; empty if there is no such process."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    return stat.rpartition(")")[2].split()  # the process name before it may contain blanks and brackets


@functools.cache
def _boot() -> str:
    try:
        return f"{Path('/proc/sys/kernel/random/boot_id').read_text().strip()} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def _exists(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True

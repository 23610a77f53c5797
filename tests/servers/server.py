"""A real server of Debian's packages, started for tests on a free port in a directory of its own: one small class for all."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from glob import glob
from pathlib import Path
from typing import Any

import psutil

_PATIENCE_S = 600
_TRIES = 3


class Server:
    """``command(server)``: what runs in the foreground. ``prepare(server)``: once, before the first start (making its data).
    ``answers(server)``: raises until it can be used. ``user``: who it runs as if we are root (some servers refuse root)."""

    def __init__(
        self,
        name: str,
        command: Callable[[Server], Sequence[str]],
        *,
        answers: Callable[[Server], object],
        prepare: Callable[[Server], object] = lambda _: None,
        user: str | None = None,
    ) -> None:
        self.name, self.port = name, free_port()
        self._command, self._answers, self._prepare = command, answers, prepare
        self._user = user if user is not None and os.geteuid() == 0 else None
        # Not below pytest's own directory: nobody but its owner may look into that.
        self.directory = Path(tempfile.mkdtemp(prefix=f"tidegate-{name}-"))
        self._process: subprocess.Popen[bytes] | None = None
        self._prepared = False

    def __enter__(self) -> Server:
        try:
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()
        shutil.rmtree(self.directory, ignore_errors=True)

    def start(self) -> None:
        """Returns when it answers. After ``stop`` or ``kill``: again, with the same data and port."""
        if not self._prepared:
            if self._user is not None:
                entry = pwd.getpwnam(self._user)
                os.chown(self.directory, entry.pw_uid, entry.pw_gid)
            self._prepare(self)
            self._prepared = True
        deadline = time.monotonic() + _PATIENCE_S
        while not self._is_up(deadline):
            assert time.monotonic() < deadline, f"{self.name} does not start; the end of its log:\n{self.log_tail()}"

    def _is_up(self, deadline: float) -> bool:
        """One start. It may end at once: behind a SIGKILL what it held (shared memory, locks) is free a moment later."""
        with (self.directory / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                list(self._command(self)), stdin=subprocess.DEVNULL, stdout=log, stderr=log, **self._as_user()
            )
        while time.monotonic() < deadline:
            try:
                self._answers(self)
                return True
            except Exception as error:
                if self._process.poll() is not None:
                    time.sleep(0.2)
                    return False
                last = error
            time.sleep(0.05)
        raise AssertionError(f"{self.name} does not answer: {last}; the end of its log:\n{self.log_tail()}")

    def stop(self) -> None:
        """In order."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """SIGKILL for it and its children, as a crash of the machine would."""
        self._end(signal.SIGKILL)

    def _end(self, number: signal.Signals) -> None:
        process, self._process = self._process, None
        if process is None or process.poll() is not None:
            return
        children = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(number)
        if number is signal.SIGKILL:
            for child in children:
                child.kill() if child.is_running() else None
        process.wait(_PATIENCE_S)
        psutil.wait_procs(children, timeout=_PATIENCE_S)

    def run(self, *command: str) -> str:
        """A tool of the server, as its user."""
        ended = subprocess.run(command, capture_output=True, text=True, **self._as_user())
        assert ended.returncode == 0, f"{' '.join(command)}: {ended.stdout}{ended.stderr}"
        return ended.stdout

    def _as_user(self) -> dict[str, Any]:
        if self._user is None:
            return {"cwd": self.directory}
        entry = pwd.getpwnam(self._user)
        return {"cwd": self.directory, "user": entry.pw_uid, "group": entry.pw_gid, "extra_groups": []}

    def log_tail(self) -> str:
        log = self.directory / "server.log"
        return log.read_text(errors="replace")[-2_000:] if log.exists() else "(none)"


def binary(name: str, package: str, *places: str) -> str:
    """The path of a server's program: on the PATH or at one of ``places`` (patterns). Its package is installed if it is missing."""
    return _found(name, places) or _installed(name, package, places)


def _found(name: str, places: Sequence[str]) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/bin") or next(
        (path for place in places for path in sorted(glob(place), reverse=True)), None
    )


def _installed(name: str, package: str, places: Sequence[str]) -> str:
    """A test that needs a server and cannot have it fails: skipping would say that the connector works."""
    command = ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-q", "--no-install-recommends", package]
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    environment["PATH"] = (
        f"{os.environ.get('PATH', '')}:/usr/local/sbin:/usr/sbin:/sbin:/usr/bin:/bin"  # dpkg needs them
    )
    output = ""
    with open(Path(tempfile.gettempdir()) / "tidegate-apt.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for _ in range(_TRIES):
            if (found := _found(name, places)) is not None:
                return found
            print(f"installing {package} from Debian's packages ...", flush=True)
            for step in (["apt-get", "update", "-q"], command):
                ended = subprocess.run(step, capture_output=True, text=True, env=environment)
                output = (ended.stdout + ended.stderr)[-2_000:]
    found = _found(name, places)
    assert found is not None, f"no {name} here, and {' '.join(command)} did not bring it:\n{output}"
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port

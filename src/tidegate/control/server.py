"""The servers of a driver, each in a daemon thread: the endpoint, one for the process, and the metrics port of a job.

The endpoint listens on a unix socket that only the user can reach, for the command line. It also listens on a free loopback port,
for other HTTP clients. A job with ``metrics.reporter.prom.port`` has a port for Prometheus while the job runs.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.base.errors import ConfigurationError
from tidegate.base.hashing import new_token
from tidegate.common.options import METRICS_PORT, METRICS_TOKEN_FILE
from tidegate.control.flink.triggers import Triggers
from tidegate.control.jobs import Jobs
from tidegate.control.registry import (
    SOCKETS,
    TOKENS,
    folder,
    given_token,
    remove_place,
    remove_socket,
    write_private,
)
from tidegate.runtime.view import JobView

if TYPE_CHECKING:
    import uvicorn

    from tidegate.control.serving import App

log = logging.getLogger(__name__)

_CLOSE_S = 5.0


class Served:
    """Answers on sockets that listen already. The thread imports the server, so that the caller does not wait for the import."""

    def __init__(
        self,
        name: str,
        listening: list[socket.socket],
        make_app: Callable[[], App],
        lost: str,
        tls: tuple[str, str] | None = None,
    ) -> None:
        self._listening, self._make_app, self._lost, self._tls = listening, make_app, lost, tls
        self._server: uvicorn.Server | None = None
        self._closed = False
        self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
        self._thread.start()

    def _serve(self) -> None:
        try:
            import asyncio

            from tidegate.control.serving import server_of

            self._server = server_of(self._make_app(), self._tls)
            if not self._closed:  # else close() came before there was a server
                asyncio.run(self._server.serve(sockets=self._listening))
        except Exception as error:
            log.warning("%s: %s", self._lost, error)
        finally:
            for each in self._listening:
                each.close()

    @property
    def is_open(self) -> bool:
        return self._thread.is_alive()

    def close(self) -> None:
        self._closed = True
        if self._server is not None:
            self._server.should_exit = True
        self._thread.join(_CLOSE_S)


class Server:
    """The endpoint. It listens as soon as the object exists.

    ``driver`` names the token. Its file is removed when the process ends, unless the token was given to it. ``socket`` is the path
    of the unix socket, None where the system allows none.
    """

    def __init__(self, jobs: Jobs) -> None:
        given = given_token()
        self.driver, self.token = given or (f"{os.getpid()}-{new_token()}", secrets.token_urlsafe(32))
        self.triggers = Triggers()
        self._process = os.getpid()
        listening = [socket.create_server(("127.0.0.1", 0))]
        self.port: int = listening[0].getsockname()[1]
        local = _listen_locally(self.driver)
        self.socket: str | None = None if local is None else local.getsockname()
        listening += [] if local is None else [local]
        self._token_file = None if given is not None else folder(TOKENS) / self.driver
        if self._token_file is not None:
            write_private(self._token_file, self.token.encode())
        atexit.register(self._forget)

        def app() -> App:
            from tidegate.control.endpoint import Endpoint
            from tidegate.control.serving import Guard

            host = rf"(127\.0\.0\.1|localhost):{self.port}"
            endpoint = Endpoint(jobs, self.triggers).application()
            return Guard(
                endpoint, host=host, origin=f"http://{host}", token=self.token, scrapers=lambda: _scrapers(jobs)
            )

        Served("tidegate-control", listening, app, "no commands can be taken for the jobs of this process any more")

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _forget(self) -> None:
        if os.getpid() == self._process:  # a child that user code has forked ends before its parent
            if self._token_file is not None:
                self._token_file.unlink(missing_ok=True)
            remove_socket(self.socket)


class MetricsPort:
    """Answer ``GET /metrics`` of Prometheus on the loopback address until ``close``.

    The port is the first free one of ``ports``. With ``token_file``, every request needs the token in that file. Raise
    ConfigurationError if no port is free, or the file has no token.
    """

    def __init__(self, ports: range, view: Callable[[], JobView], token_file: str | None = None) -> None:
        token = None if token_file is None else _token(token_file)
        listening = _listen_on_one_of(ports)
        self.port: int = listening.getsockname()[1]

        def app() -> App:
            from tidegate.control.endpoint import metrics_application
            from tidegate.control.serving import Guard

            # Any port: a client that comes through a tunnel names the port at the other end of the tunnel.
            return Guard(metrics_application(view), host=r"(127\.0\.0\.1|localhost)(:\d+)?", token=token)

        self._served = Served("tidegate-metrics", [listening], app, "Prometheus gets no figures of the job any more")

    def close(self) -> None:
        self._served.close()


def _listen_on_one_of(ports: range) -> socket.socket:
    for port in ports:
        try:
            return socket.create_server(("127.0.0.1", port))
        except OSError as error:
            reason = error
    raise ConfigurationError(
        f"'{METRICS_PORT.key}' names no free port",
        found=f"{ports.start} to {ports.stop - 1}: {reason}" if len(ports) > 1 else f"{ports.start}: {reason}",
        cure=f"set {METRICS_PORT.key} to another port, or to a range such as 9249-9260",
    )


def _token(file: str) -> str:
    try:
        token, found = Path(file).read_text().strip(), "an empty file"
    except OSError as error:
        token, found = "", f"{type(error).__name__}: {error}"
    if not token:
        raise ConfigurationError(
            f"'{METRICS_TOKEN_FILE.key}' names no file with a token",
            where=file,
            found=found,
            cure=f"write a token into the file: openssl rand -hex 32 > {file}",
        )
    return token


def _scrapers(jobs: Jobs) -> list[str]:
    """Return the tokens that jobs of this process have for Prometheus. They are read anew: a file may be replaced."""
    tokens = []
    for file in {job.handle.settings.metrics_token_file for job in jobs.all()} - {None}:
        try:
            tokens.append(_token(str(file)))
        except ConfigurationError as error:
            log.debug("%s", error)
    return tokens


def _listen_locally(driver: str) -> socket.socket | None:
    """Listen on a unix socket that nobody else can reach: below home; or, where that path is too long for a socket (107 bytes) or
    cannot hold one, in a new directory for temporary files."""
    places: tuple[Callable[[], Path], ...] = (
        lambda: folder(SOCKETS),
        lambda: Path(tempfile.mkdtemp(prefix="tidegate-")),
    )
    for make in places:
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        place = None
        try:
            place = make()
            listening.bind(str(place / driver))
            os.chmod(place / driver, 0o600)
            listening.listen()
            return listening
        except OSError as error:
            log.debug("no unix socket in %s: %s", place, error)
            listening.close()
            remove_place(place)
    return None

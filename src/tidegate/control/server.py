"""The server of a driver's endpoint: one for the process, in a daemon thread. It listens on a unix socket that only the user can
reach, for the command line, and on a free port of the loopback address, for everything else that speaks HTTP."""

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

from tidegate.base.ids import new_token
from tidegate.control.home import SOCKETS, TOKENS, folder, remove_place, remove_socket, write_private
from tidegate.control.jobs import Jobs

log = logging.getLogger(__name__)


class Server:
    """Listens when it has been made. ``driver`` names the file with its token, which goes with the process. ``socket``: the path of
    the unix socket, None where the system allows none."""

    def __init__(self, jobs: Jobs) -> None:
        self.driver, token = f"{os.getpid()}-{new_token()}", secrets.token_urlsafe(32)
        self._process = os.getpid()
        listening = [socket.create_server(("127.0.0.1", 0))]
        self.port: int = listening[0].getsockname()[1]
        local = _listen_locally(self.driver)
        self.socket: str | None = None if local is None else local.getsockname()
        listening += [] if local is None else [local]
        self._token_file = folder(TOKENS) / self.driver
        write_private(self._token_file, token.encode())
        atexit.register(self._forget)
        arguments = (jobs, token, listening)
        threading.Thread(target=self._serve, args=arguments, name="tidegate-control", daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _serve(self, jobs: Jobs, token: str, listening: list[socket.socket]) -> None:
        try:
            import asyncio  # these take a moment: here nobody waits for them

            import uvicorn

            from tidegate.control.connections import BACKLOG, Connection
            from tidegate.control.endpoint import Endpoint
            from tidegate.control.guard import Guard

            config = uvicorn.Config(
                Guard(Endpoint(jobs).application(), token, self.port),
                loop="asyncio",
                http=Connection,
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                backlog=BACKLOG,
            )
            asyncio.run(uvicorn.Server(config).serve(sockets=listening))
        except Exception as error:
            log.warning("no commands can be taken for the jobs of this process any more: %s", error)
        finally:
            for each in listening:
                each.close()

    def _forget(self) -> None:
        if os.getpid() == self._process:  # a child that user code has forked ends before us
            self._token_file.unlink(missing_ok=True)
            remove_socket(self.socket)


def _listen_locally(driver: str) -> socket.socket | None:
    """On a path that nobody else can reach: below home, or where that is too long for a socket (107 bytes) or cannot hold one, in a
    new directory for temporary files."""
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

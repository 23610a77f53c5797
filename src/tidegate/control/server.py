"""The server of a driver's endpoint: one for the process, in a daemon thread, on a port of the loopback address nobody had."""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import socket
import threading

from tidegate.common.ids import new_token
from tidegate.control.home import TOKENS, folder, write_private
from tidegate.control.jobs import Jobs

log = logging.getLogger(__name__)

_MOST_REQUESTS = 64


class Server:
    """Listens when it has been made. ``driver`` names the file with its token, which goes with the process."""

    def __init__(self, jobs: Jobs) -> None:
        self.driver, token = f"{os.getpid()}-{new_token()}", secrets.token_urlsafe(32)
        listening = socket.create_server(("127.0.0.1", 0))
        self.port: int = listening.getsockname()[1]
        self._token_file = folder(TOKENS) / self.driver
        write_private(self._token_file, token.encode())
        atexit.register(self._forget)
        arguments = (jobs, token, listening)
        threading.Thread(target=self._serve, args=arguments, name="tidegate-control", daemon=True).start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def _serve(self, jobs: Jobs, token: str, listening: socket.socket) -> None:
        try:
            import asyncio  # these take a moment: here nobody waits for them

            import uvicorn

            from tidegate.control.endpoint import Endpoint
            from tidegate.control.guard import Guard

            config = uvicorn.Config(
                Guard(Endpoint(jobs).application(), token, self.port),
                loop="asyncio",
                http="h11",
                ws="none",
                lifespan="off",
                log_config=None,
                log_level="critical",
                access_log=False,
                server_header=False,
                limit_concurrency=_MOST_REQUESTS,
            )
            asyncio.run(uvicorn.Server(config).serve(sockets=[listening]))
        except Exception as error:
            log.warning("no commands can be taken for the jobs of this process any more: %s", error)
        finally:
            listening.close()

    def _forget(self) -> None:
        self._token_file.unlink(missing_ok=True)

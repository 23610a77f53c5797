"""A sender for tests of the socket source: every connection gets the next lines, and no line is ever sent twice."""

from __future__ import annotations

import socket
import threading


class Sender:
    """``texts``: one for each connection, in order; later connections get nothing. ``holds``: so many connections,
    the first ones, stay open until ``release``, or until the other side closes them."""

    def __init__(self, *texts: str | bytes, holds: int = 0) -> None:
        self._texts = [text.encode() if isinstance(text, str) else text for text in texts]
        self._server = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._server.getsockname()[1]
        self.connections = 0
        self._released = threading.Event()
        self._holds = holds
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                connection, _ = self._server.accept()
            except OSError:
                return
            self.connections += 1
            with connection:
                if self._texts:
                    connection.sendall(self._texts.pop(0))
                if self.connections <= self._holds:
                    self._hold(connection)

    def _hold(self, connection: socket.socket) -> None:
        connection.settimeout(0.01)
        while not self._released.is_set():
            try:
                if not connection.recv(1):
                    return
            except TimeoutError:
                continue

    def release(self) -> None:
        self._released.set()

    def close(self) -> None:
        self.release()
        self._server.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for a connection
        self._server.close()

    def __enter__(self) -> Sender:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

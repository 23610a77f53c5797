"""``tidegate dev session``: a process that keeps Spark warm between the runs of a program that is being written.

Three processes take part. The **client** (``tidegate dev run``) sends the program's path, its arguments, environment and its
own streams over a unix socket that only the user can reach. The **session** hands them to its **host** (``dev_host.py``), which
runs programs one after another with one Spark context. The session replaces the host when a new Spark context is needed: another
directory, other settings, a changed module beside the program, or a host that died.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import msgspec

from tidegate.base.errors import ConfigurationError, UnreachableError
from tidegate.cli.outcome import say
from tidegate.control import registry

_NAME = "dev-session"
_STREAMS = 3
_PATIENCE_S = 10.0
_LARGEST = 16 << 20
_MATTERS = ("SPARK_", "PYSPARK_", "JAVA_", "PYTHON", "HADOOP_", "TIDEGATE_")
"""Variables that a JVM or a worker reads when it starts."""
INTERRUPT = b"I"


class Request(msgspec.Struct, frozen=True):
    """A program to run. ``properties``: of ``-D`` and its shorthands."""

    script: str
    arguments: list[str]
    properties: dict[str, str]
    pyflink: bool
    directory: str
    environment: dict[str, str]

    @property
    def key(self) -> tuple[object, ...]:
        """Programs with the same key can share a Spark context."""
        place = str(Path(self.directory, self.script).resolve().parent)
        spark = sorted((key, value) for key, value in self.properties.items() if key.startswith(("spark.", "python.")))
        variables = sorted((key, value) for key, value in self.environment.items() if key.startswith(_MATTERS))
        return place, self.directory, tuple(spark), tuple(variables)


class Done(msgspec.Struct, frozen=True):
    """The host is free again. ``files``: modules beside the program, with time and size: Spark's workers have imported them."""

    files: dict[str, tuple[int, int]]


def send(connection: socket.socket, message: msgspec.Struct, descriptors: list[int]) -> None:
    content = msgspec.json.encode(message)
    head = len(content).to_bytes(4, "big")
    if descriptors:
        socket.send_fds(connection, [head], descriptors)
    else:
        connection.sendall(head)
    connection.sendall(content)


def receive(
    connection: socket.socket, kind: type[msgspec.Struct], descriptors: int
) -> tuple[msgspec.Struct, list[int]]:
    """Return the next message. Raise EOFError if the other side has gone or the message is invalid."""
    head, received, _, _ = socket.recv_fds(connection, 4, descriptors)
    size = int.from_bytes(head, "big")
    try:
        if len(head) < 4 or size > _LARGEST or len(received) != descriptors:
            raise EOFError("no message")
        content = b""
        while len(content) < size:
            part = connection.recv(min(size - len(content), 1 << 16))
            if not part:
                raise EOFError("the other side has gone")
            content += part
        return msgspec.json.decode(content, type=kind), list(received)
    except (EOFError, OSError, msgspec.DecodeError) as error:
        for descriptor in received:
            os.close(descriptor)
        raise EOFError(str(error)) from None


# -- the client --------------------------------------------------------------------------------------------------------------


def run_in_session(request: Request) -> int:
    """Run the program in the session, with the streams of this process, and return its exit code."""
    with socket.socket(socket.AF_UNIX) as connection:
        try:
            connection.connect(str(_address()))
        except OSError as error:
            raise UnreachableError(
                "No development session runs",
                found=f"{_address()}: {error.strerror}",
                cure="start one in another terminal: tidegate dev session",
            ) from None
        send(connection, request, [0, 1, 2])
        answer = _answer(connection)
    if not answer:
        raise UnreachableError(
            "The process of the session that ran the program has died",
            found="no exit code",
            cure="run it again: the session starts another process; or use tidegate run",
        )
    return answer[0]


def _answer(connection: socket.socket) -> bytes:
    """Wait for the exit code. Ctrl-C and SIGTERM go to the program, which ends in order."""

    def pass_on(*_: object) -> None:
        with suppress(OSError):
            connection.sendall(INTERRUPT)

    before = {number: signal.signal(number, pass_on) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        return connection.recv(1)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


# -- the session -------------------------------------------------------------------------------------------------------------


class Host:
    """The process that runs programs, and what is known of it."""

    def __init__(self, request: Request) -> None:
        self.key = request.key
        self._files: dict[str, tuple[int, int]] = {}
        self._link, other = socket.socketpair()
        with other:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tidegate.cli.dev_host", str(other.fileno())],
                env=request.environment,
                cwd=request.directory,
                stdin=subprocess.DEVNULL,
                pass_fds=[other.fileno()],
                start_new_session=True,  # Ctrl-C in the session's terminal is for the session
            )

    def suits(self, request: Request) -> bool:
        return self._process.poll() is None and self.key == request.key and self._files == seen(self._files)

    def run(self, request: Request, streams: list[int], client: socket.socket) -> None:
        """Hand the program over, and wait until it has ended. A host that dies leaves the client without an exit code."""
        try:
            send(self._link, request, [*streams, client.fileno()])
            done, _ = receive(self._link, Done, 0)
        except (EOFError, OSError):
            self.end()
            return
        assert isinstance(done, Done)
        self._files = done.files

    def end(self) -> None:
        self._link.close()  # the host ends when it reads this
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def serve() -> None:
    """Run programs of clients until Ctrl-C or SIGTERM."""
    host: Host | None = None
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    address = _address()
    with _listening(address) as server:
        try:
            say(f"session {os.getpid()}: run programs with tidegate dev run FILE; Ctrl-C ends the session")
            sys.stdout.flush()
            while True:
                client, _ = server.accept()
                with client:
                    host = _served(client, host)
        except KeyboardInterrupt:
            say("the session has ended")
        finally:
            address.unlink(missing_ok=True)
            if host is not None:
                host.end()
            signal.signal(signal.SIGTERM, before)


def _served(client: socket.socket, host: Host | None) -> Host | None:
    client.settimeout(_PATIENCE_S)
    try:
        request, streams = receive(client, Request, _STREAMS)
    except (EOFError, TimeoutError):
        return host
    client.settimeout(None)
    assert isinstance(request, Request)
    try:
        if host is None or not host.suits(request):
            if host is not None:
                host.end()
            host = Host(request)
        host.run(request, streams, client)
    finally:
        for stream in streams:
            os.close(stream)
    return host


def _listening(address: Path) -> socket.socket:
    server = socket.socket(socket.AF_UNIX)
    try:
        with socket.socket(socket.AF_UNIX) as probe:
            probe.connect(str(address))
    except OSError:
        address.unlink(missing_ok=True)  # nobody listens: a session that was killed has left it
    else:
        server.close()
        raise ConfigurationError(
            "A development session of this user already runs", where=str(address), cure="use it, or end it with Ctrl-C"
        )
    try:
        server.bind(str(address))
    except OSError as error:
        server.close()
        raise ConfigurationError(
            "The session cannot listen",
            where=str(address),
            found=str(error),
            cure=f"set {registry.VARIABLE} to a short path",
        ) from None
    server.listen()
    return server


def _address() -> Path:
    return registry.folder(registry.SOCKETS) / _NAME


def seen(files: dict[str, tuple[int, int]] | list[str]) -> dict[str, tuple[int, int]]:
    """Return time and size of these files as they are now. A file that is gone is left out."""
    found = {}
    for path in files:
        with suppress(OSError):
            status = os.stat(path)
            found[path] = (status.st_mtime_ns, status.st_size)
    return found

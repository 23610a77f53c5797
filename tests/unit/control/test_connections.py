"""Connections to a driver: idle ones keep nobody out, the command line goes by a unix socket, and no token goes to a stranger."""

from __future__ import annotations

import http.client
import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import h11
import msgspec
import pytest
from typer.testing import CliRunner

from tests.unit.control.drivers import Driver
from tests.waiting import eventually
from tidegate.base.errors import UnreachableError
from tidegate.checkpoint.owner import this_process
from tidegate.cli.main import app
from tidegate.common.job_status import JobStatus
from tidegate.control import registry, serving
from tidegate.control.client import DriverClient
from tidegate.control.jobs import ControlledJob, Jobs
from tidegate.control.registry import TOKENS, JobRecord, folder, read_token, write_private
from tidegate.control.registry_jobs import RegistryJob
from tidegate.control.server import Server
from tidegate.runtime.handle import StartedJob

Start = Callable[..., Driver]
HOLDS = """
import socket, sys
head = b"POST /tidegate/jobs/j/cancel HTTP/1.1\\r\\nHost: x\\r\\n"
sent = [b"", head, head + b"Content-Length: 9\\r\\n\\r\\n"]
held = []
for number in range(200):
    held.append(socket.create_connection(("127.0.0.1", int(sys.argv[1]))))
    held[-1].sendall(sent[number % 3])
print("held", flush=True)
held[0].settimeout(60)
try:
    held[0].recv(1)
except ConnectionResetError:
    pass
print("dropped", flush=True)
sys.stdin.read()
"""


@contextmanager
def idle_connections(port: int) -> Iterator[None]:
    """200 of another process: silent, with half a head, and with half a request without token."""
    command = [sys.executable, "-c", HOLDS, str(port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdin is not None
        assert holder.stdout.readline() == "held\n"
        yield
        assert holder.stdout.readline() == "dropped\n", "the oldest was closed by the driver"
        assert holder.poll() is None, "they were held all the time"
        holder.stdin.close()


def answer(server: Server, path: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection(server.address, timeout=60)
    connection.request("GET", path, headers={"Authorization": f"Bearer {read_token(server.driver)}"})
    response = connection.getresponse()
    content = response.read()
    connection.close()
    return response.status, content


@pytest.fixture
def held_job(home: Path) -> tuple[Server, Future[str], str]:
    """A server with one job, the answer it waits for, and the path that waits."""
    handle = cast("StartedJob", SimpleNamespace(job_id="j", status=lambda: JobStatus.RUNNING))
    job, jobs, answer = ControlledJob(handle), Jobs(), Future[str]()
    jobs.add(job)
    return Server(jobs), answer, f"/tidegate/jobs/j/operations/{job.operations.begin('x', answer).id}?wait=25"


def test_commands_work_while_200_idle_connections_are_held(driver: Start) -> None:
    one = driver("besieged").running()
    endpoint = str(one.record().endpoint)
    with idle_connections(int(endpoint.rpartition(":")[2])):
        run = CliRunner().invoke
        assert "besieged" in run(app, ["list"]).stdout
        assert "OPERATOR" in run(app, ["info", "besieged"]).stdout, "the driver has answered"
        token = read_token(str(one.record().driver))
        connection = http.client.HTTPConnection(endpoint, timeout=60)
        connection.request("GET", "/tidegate/jobs", headers={"Authorization": f"Bearer {token}"})
        assert connection.getresponse().status == 200, "TCP works too"
        connection.close()
        cancelled = run(app, ["cancel", "besieged"])
        assert (cancelled.exit_code, cancelled.stdout) == (0, "the job is CANCELED\n"), cancelled.stderr


def test_request_that_waits_for_its_answer_survives_200_idle_connections(
    held_job: tuple[Server, Future[str], str],
) -> None:
    server, future, path = held_job
    answers: list[tuple[int, bytes]] = []
    waiting = threading.Thread(target=lambda: answers.append(answer(server, path)))
    waiting.start()
    with idle_connections(server.port):
        pass
    future.set_result("done")
    waiting.join()
    assert answers[0][0] == 200 and b'"succeeded"' in answers[0][1]


@pytest.mark.parametrize("authorised", [False, True])
@pytest.mark.parametrize("state", [h11.IDLE, h11.SEND_BODY])
def test_head_or_body_that_does_not_come_closes_the_connection(
    held_job: tuple[Server, Future[str], str],
    state: type[h11.IDLE | h11.SEND_BODY],
    authorised: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "LIMITS", {**serving.LIMITS, state: 0.05})
    server = held_job[0]
    head = f"POST /tidegate/jobs/j/cancel HTTP/1.1\r\nHost: {server.address}\r\n"
    head += f"Authorization: Bearer {read_token(server.driver)}\r\n" if authorised else ""
    head += "Content-Length: 9\r\n\r\n{" if state is h11.SEND_BODY else ""
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as slow:
        slow.sendall(head.encode())
        try:
            received = b"".join(iter(lambda: slow.recv(1000), b""))
        except ConnectionResetError:
            received = b""
    assert received.startswith(b"HTTP/1.1 401") if state is h11.SEND_BODY and not authorised else received == b""


def test_refused_connection_is_closed(held_job: tuple[Server, Future[str], str]) -> None:
    with socket.create_connection(("127.0.0.1", held_job[0].port), timeout=60) as refused:
        refused.sendall(f"GET / HTTP/1.1\r\nHost: {held_job[0].address}\r\n\r\n".encode())
        received = b"".join(iter(lambda: refused.recv(1000), b""))  # ends, although we keep ours open
    assert received.startswith(b"HTTP/1.1 401")


# -- the unix socket -------------------------------------------------------------------------------------------------------


def test_unix_socket_is_the_users_alone_and_goes_with_the_driver(driver: Start, home: Path) -> None:
    one = driver("local").running()
    path = Path(str(one.record().socket))
    assert path.parent == home / "sockets"
    assert [place.stat().st_mode & 0o777 for place in (path.parent, path)] == [0o700, 0o600]
    assert CliRunner().invoke(app, ["cancel", "local"]).exit_code == 0
    one.process.wait()
    assert not path.exists()


def test_commands_do_not_need_tcp(driver: Start) -> None:
    one = driver("local").running()
    registry.write(msgspec.structs.replace(one.record(), endpoint="127.0.0.1:1"))
    client = DriverClient(one.record())
    assert client.details().job_id == "local"


def test_socket_of_a_killed_driver_is_removed_with_its_token(driver: Start, home: Path) -> None:
    one = driver("killed").running()
    one.end()
    assert Path(str(one.record().socket)).is_socket()
    registry.prune(one.record().started_ms)
    assert list((home / "sockets").iterdir()) == [] and list((home / "tokens").iterdir()) == []


@pytest.mark.parametrize("long_temporary", [False, True])
def test_home_too_long_for_a_socket_gives_a_short_one_or_tcp(
    driver: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, long_temporary: bool
) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", f"{tmp_path}/{'long/' * 30}home")
    temporary = Path(f"{tmp_path}/{'long/' * 30}tmp") if long_temporary else Path(tempfile.mkdtemp())
    temporary.mkdir(parents=True, exist_ok=True)
    monkeypatch.setenv("TMPDIR", str(temporary))
    one = driver("deep").running()
    path = one.record().socket
    if long_temporary:
        assert path is None
    else:
        assert path is not None and Path(path).parent.parent == temporary
        assert Path(path).parent.stat().st_mode & 0o777 == 0o700
    assert CliRunner().invoke(app, ["cancel", "deep"]).stdout == "the job is CANCELED\n"
    one.process.wait()
    assert list(temporary.glob("tidegate-*")) == []


def test_forked_child_that_ends_leaves_token_and_socket_to_its_parent(home: Path) -> None:
    server = Server(Jobs())
    child = os.fork()
    if child == 0:
        server._forget()
        os._exit(0)
    os.waitpid(child, 0)
    assert read_token(server.driver) and Path(str(server.socket)).is_socket()
    server._forget()
    assert not Path(str(server.socket)).exists()


# -- strangers -------------------------------------------------------------------------------------------------------------


@contextmanager
def stranger(reply: bytes = b"") -> Iterator[tuple[str, list[bytes]]]:
    """Somebody on the loopback address, and what he has received."""
    heard: list[bytes] = []

    def serve() -> None:
        while True:
            try:
                connection, _ = listening.accept()
            except OSError:
                return
            with connection:
                heard.append(connection.recv(10_000))
                connection.sendall(reply)

    with socket.create_server(("127.0.0.1", 0)) as listening:
        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield f"127.0.0.1:{listening.getsockname()[1]}", heard
        listening.shutdown(socket.SHUT_RDWR)
        thread.join()


def record(endpoint: str, **owner: str) -> JobRecord:
    write_private(folder(TOKENS) / "1-x", b"secret")
    made = JobRecord(
        run=registry.new_run(),
        job_id="far",
        name="n",
        program="/p.py",
        owner=msgspec.structs.replace(this_process(), **owner),
        started_ms=1,
        state="RUNNING",
        endpoint=endpoint,
        socket=str(folder("sockets") / "nobody"),
        driver="1-x",
    )
    registry.write(made)
    return made


@pytest.mark.parametrize(
    ("owner", "found"),
    [
        ({"host": "elsewhere"}, f"this is host {socket.gethostname()}"),
        (
            {"boot": "another"},
            f"this host is called {socket.gethostname()} too, but has been restarted since, or is another host or container",
        ),
    ],
)
def test_token_of_a_driver_on_another_host_stays_here(home: Path, owner: dict[str, str], found: str) -> None:
    with stranger() as (endpoint, heard):
        far = record(endpoint, **owner)
        with pytest.raises(UnreachableError) as raised:
            DriverClient(far).begin("cancel")
        done = CliRunner().invoke(app, ["cancel", "far"])
        assert "OPERATOR" not in CliRunner().invoke(app, ["info", "far"]).stdout
    assert heard == [], "nobody was asked"
    assert str(raised.value) == (
        f"The driver runs on another host, and takes commands only there\n  where: job far ('n'), {far.owner}\n  found: {found}\n"
        f"  cure: run the command on {far.owner.host}"
    )
    assert f"cure: run the command on {far.owner.host}" in done.stderr


def test_page_names_the_command_line_for_a_job_that_takes_commands_from_storage(home: Path) -> None:
    far = msgspec.structs.replace(record("127.0.0.1:1", host="far"), place="hdfs:///jobs/far", seen="live")
    with pytest.raises(UnreachableError, match=r"cure: use the command line.* tidegate stop far"):
        RegistryJob(far).begin("stop")


def test_answer_that_is_not_a_drivers_is_shown_with_its_status(home: Path) -> None:
    busy = (
        b"HTTP/1.1 503 Service Unavailable\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\nService Unavailable"
    )
    with stranger(busy) as (endpoint, _), pytest.raises(UnreachableError) as raised:
        DriverClient(record(endpoint)).begin("cancel")
    assert "found: HTTP status 503 with a body that no driver sends: 'Service Unavailable'\n  cure: check" in str(
        raised.value
    )


LISTENS = """
import os, socket, sys
os.setuid(12345)
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind(sys.argv[1])
    listening.listen()
    print("listens", flush=True)
    connection, _ = listening.accept()
    print(connection.recv(1000), flush=True)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_socket_of_another_user_gets_no_token(home: Path) -> None:
    place = tempfile.mkdtemp()
    os.chmod(place, 0o777)
    program = [sys.executable, "-c", LISTENS, f"{place}/s"]
    with subprocess.Popen(program, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "listens\n"
        far = msgspec.structs.replace(record("127.0.0.1:1", host="elsewhere"), socket=f"{place}/s")
        with pytest.raises(UnreachableError, match="run the command on elsewhere"):
            DriverClient(far).begin("cancel")
        assert other.stdout.read() == "b''\n"
    eventually(lambda: other.poll() is not None)

"""Who may use the page: logins, cookies, CSRF, hosts, origins, paths, slow readers, hostile names."""

from __future__ import annotations

import contextlib
import http.client
import json
import socket
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.unit.control.drivers import Driver
from tests.unit.control.test_connections import idle_connections
from tests.unit.control.web.browser import Browser
from tests.waiting import eventually
from tidegate.base.errors import ConfigurationError
from tidegate.control import serving
from tidegate.control.registry_jobs import RegistryJobs
from tidegate.control.server import Served
from tidegate.control.web import live, login
from tidegate.control.web.login import CODE_S, SESSION_S, Logins, read_secret
from tidegate.control.web.server import PageServer, Tls

Start = Callable[..., Driver]
PASSWORD, TOKEN = "correct horse battery", "0123456789abcdef"
ANYWHERE = ".".join("0000")


@pytest.fixture
def server(home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[PageServer]:
    monkeypatch.setattr(login, "_GUESS_S", 0.01)
    server = PageServer(RegistryJobs(), server="installation", password=PASSWORD, token=TOKEN)
    yield server
    server.close()


@pytest.fixture
def browser(server: PageServer) -> Browser:
    return Browser(server).log_in()


def raw(port: int, request: bytes) -> bytes:
    """Send bytes, and return all that comes until the server closes the connection."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(request)
        connection.shutdown(socket.SHUT_WR)
        parts = []
        with contextlib.suppress(ConnectionResetError):
            while part := connection.recv(1 << 16):
                parts.append(part)
        return b"".join(parts)


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


# -- login ---------------------------------------------------------------------------------------------------------------


def test_code_works_once_and_for_ten_minutes() -> None:
    now = 0.0
    used: list[int] = []
    logins = Logins(clock=lambda: now, code_used=lambda: used.append(1))
    code, late = logins.new_code(), logins.new_code()
    assert logins.begin(code) is not None
    assert logins.begin(code) is None
    now = CODE_S + 1
    assert logins.begin(late) is None
    eventually(lambda: len(used) == 1, "a new code is given")


def test_session_ends_with_logout_and_after_hours_without_a_request() -> None:
    now = 0.0
    logins = Logins(clock=lambda: now)
    first, second = (str(logins.begin(logins.new_code())) for _ in range(2))
    now = SESSION_S - 1
    assert logins.session(first) is not None
    now = SESSION_S + 1
    assert logins.session(first) is not None, "it was used"
    assert logins.session(second) is None
    logins.end(first)
    assert logins.session(first) is None and logins.session("") is None


def test_sessions_and_codes_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_MOST_SESSIONS", 3)
    now = 0.0
    logins = Logins(clock=lambda: now)
    cookies = []
    for _ in range(5):
        now += 1
        cookies.append(str(logins.begin(logins.new_code())))
    assert [logins.session(cookie) is not None for cookie in cookies] == [False, False, True, True, True]


def test_login_sets_a_cookie_that_scripts_and_other_sites_do_not_get(server: PageServer) -> None:
    browser = Browser(server)
    place = server.login_address().partition(f":{server.port}")[2]
    assert browser.ask("GET", place)[0] == 303
    flags = {part.strip().lower() for part in browser.headers["set-cookie"].split(";")[1:]}
    assert {"httponly", "samesite=strict", "path=/"} <= flags
    assert browser.headers["location"] == "/"
    assert Browser(server).ask("GET", place)[0] == 403, "the code was used"
    assert browser.ask("GET", "/tidegate/page/jobs")[0] == 200


def test_two_servers_of_a_host_keep_their_sessions_apart(server: PageServer, browser: Browser) -> None:
    """A browser sends each cookie to every port of the host, so the port is part of the name."""
    other = PageServer(RegistryJobs(), server="installation")
    try:
        second = Browser(other).log_in()
        both = f"{browser.cookie}; {second.cookie}"
        for each in (browser, second):
            each.cookie = both
            assert each.ask("GET", "/tidegate/page/jobs")[0] == 200
        value = both.partition(";")[0].partition("=")[2]
        assert second.ask("GET", "/tidegate/page/jobs", headers={"Cookie": f"tidegate-{other.port}={value}"})[0] == 401
        second.cookie = both
        assert second.ask("POST", "/tidegate/logout")[0] == 200
        assert second.headers["set-cookie"].startswith(f"tidegate-{other.port}=")
        assert browser.ask("GET", "/tidegate/page/jobs")[0] == 200
    finally:
        other.close()


def test_password_logs_in_and_a_wrong_one_does_not(server: PageServer) -> None:
    browser = Browser(server)
    form = {"Content-Type": "application/x-www-form-urlencoded", "Origin": "null"}
    assert browser.ask("POST", "/tidegate/login", b"secret=wrong", form)[0] == 403 and not browser.cookie
    assert browser.ask("POST", "/tidegate/login", b"secret=" + b"x" * 100_000, form)[0] == 403
    assert browser.ask("POST", "/tidegate/login", b"\xff\xfe&secret", form)[0] == 403
    assert browser.ask("GET", f"/tidegate/login?code={quote(PASSWORD)}")[0] == 403, "no password in an address"
    assert browser.ask("POST", "/tidegate/login", f"secret={PASSWORD.replace(' ', '+')}".encode(), form)[0] == 303
    assert browser.ask("GET", "/tidegate/page/jobs")[0] == 200


def test_too_many_guesses_leave_the_password_unlooked_at_and_codes_open_the_page(
    server: PageServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(login, "_MOST_GUESSES", 0)
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    browser = Browser(server)
    for secret in ("wrong", PASSWORD):
        assert browser.ask("POST", "/tidegate/login", f"secret={secret}".encode(), form)[0] == 429
    assert not browser.cookie
    code = server.logins.new_code()
    assert browser.ask("POST", "/tidegate/login", f"secret={code}".encode(), form)[0] == 303


@pytest.mark.parametrize("gone", [True, False])
def test_code_opens_the_page_although_the_terminal_is_gone_or_stopped(gone: bool) -> None:
    def tell() -> None:
        if gone:
            raise BrokenPipeError("nobody reads")
        resumed.wait()

    resumed = threading.Event()
    logins = Logins(code_used=tell)
    cookie = logins.begin(logins.new_code())
    assert cookie is not None and logins.session(cookie) is not None
    resumed.set()


def test_logout_ends_the_session(browser: Browser) -> None:
    cookie = browser.cookie
    assert browser.ask("POST", "/tidegate/logout")[0] == 200
    browser.cookie = cookie
    assert browser.ask("GET", "/tidegate/page/jobs")[0] == 401


def test_logout_ends_the_events_of_open_pages(browser: Browser) -> None:
    events = browser.events("/events")
    assert next(events)[0] == "jobs"
    browser.ask("POST", "/tidegate/logout")
    assert [event for event, _ in events if event != "jobs"] == []


@pytest.mark.parametrize(
    ("content", "mode", "found"),
    [("", 0o600, "an empty file"), ("short", 0o600, "5 characters"), (PASSWORD, 0o644, "other users can read")],
)
def test_secret_file_that_is_no_secret_is_refused(tmp_path: Path, content: str, mode: int, found: str) -> None:
    file = tmp_path / "secret"
    file.write_text(content)
    file.chmod(mode)
    with pytest.raises(ConfigurationError, match=found):
        read_secret(str(file), "--password-file")
    with pytest.raises(ConfigurationError, match="FileNotFoundError"):
        read_secret(str(tmp_path / "none"), "--password-file")


# -- the gate ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "/tidegate/page/jobs",
        "/tidegate/page/events",
        "/tidegate/page/me",
        "/jobs/overview",
        "/v1/jobs",
        "/metrics",
        "/no",
    ],
)
def test_without_login_only_the_files_and_the_form_answer(server: PageServer, path: str) -> None:
    browser = Browser(server)
    code, problem = browser.ask("GET", path)
    assert code == 401 and "og in" in json.dumps(problem), problem
    assert browser.ask("GET", "/tidegate/login")[0] == 200


def test_token_needs_no_csrf_and_a_wrong_token_is_refused_beside_a_cookie(browser: Browser) -> None:
    bare = Browser(browser.server)
    assert bare.ask("GET", "/tidegate/page/jobs", headers={"Authorization": f"Bearer {TOKEN}"})[0] == 200
    assert bare.ask("POST", "/tidegate/page/jobs/no/stop", {}, {"Authorization": f"Bearer {TOKEN}"})[0] == 404
    for wrong in ("Bearer no", f"Basic {TOKEN}", "Bearer ", "Bearer \xff"):
        assert browser.ask("GET", "/tidegate/page/jobs", headers={"Authorization": wrong})[0] == 401


@pytest.mark.parametrize("csrf", ["", "wrong"])
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("POST", "/tidegate/page/jobs/one/stop"),
        ("POST", "/tidegate/page/snapshots/dispose"),
        ("POST", "/tidegate/logout"),
        ("DELETE", "/tidegate/page/programs/x"),
        ("PATCH", "/jobs/one"),
        ("POST", "/v1/jobs/one/stop"),
    ],
)
def test_change_by_cookie_needs_the_csrf_token(browser: Browser, method: str, path: str, csrf: str) -> None:
    browser.csrf = csrf
    code, problem = browser.ask(method, path, {})
    assert code == 403 and "X-Tidegate-CSRF" in json.dumps(problem)


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": "localhost@evil.example"},
        {"Host": ""},
        {"Host": "localhost:x"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://localhost:1"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site", "Sec-Fetch-Mode": "cors"},
    ],
)
def test_foreign_hosts_origins_and_sites_are_refused_before_any_path(browser: Browser, headers: dict[str, str]) -> None:
    for path in ("/tidegate/page/jobs", "/", "/assets/x"):
        given = {"Host": f"localhost:{browser.server.port}", "Cookie": browser.cookie, **headers}
        head = "".join(f"{key}: {value}\r\n" for key, value in given.items())
        answer = raw(browser.server.port, f"GET {path} HTTP/1.1\r\n{head}\r\n".encode())
        assert status(answer) in (400, 403), answer


def test_own_origin_and_the_end_of_a_tunnel_are_accepted(browser: Browser) -> None:
    for host in (f"localhost:{browser.server.port}", "127.0.0.1:9999", "[::1]:8081", "LOCALHOST"):
        more = {"Host": host, "Origin": f"http://{host}", "Sec-Fetch-Site": "same-origin"}
        assert browser.ask("GET", "/tidegate/page/jobs", headers=more)[0] == 200, host


@pytest.mark.parametrize("path", ["/", "/tidegate/login", "/tidegate/page/jobs", "/no/such/path", "/assets/none.js"])
def test_every_answer_has_the_headers_that_protect_the_page(browser: Browser, path: str) -> None:
    for asking in (browser, Browser(browser.server)):
        asking.ask("GET", path)
        assert "default-src 'self'" in asking.headers["content-security-policy"]
        assert "frame-ancestors 'none'" in asking.headers["content-security-policy"]
        assert "unsafe" not in asking.headers["content-security-policy"]
        assert asking.headers["x-content-type-options"] == "nosniff"
        assert asking.headers["referrer-policy"] == "no-referrer"
        assert "access-control-allow-origin" not in asking.headers


@pytest.mark.parametrize(
    "path",
    [
        "/assets/../routes.py",
        "/assets/..%2froutes.py",
        "/assets/%2e%2e/routes.py",
        "/assets//etc/passwd",
        "/assets/%2fetc%2fpasswd",
        "/assets/..\\routes.py",
        "/assets/.hidden",
        "/assets/",
        "/assets/%00",
    ],
)
def test_static_path_leads_only_to_files_of_the_page(browser: Browser, path: str) -> None:
    answer = raw(browser.server.port, f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
    assert status(answer) == 404 and b"import" not in answer and b"root:" not in answer


# -- connections ---------------------------------------------------------------------------------------------------------


def test_refusal_is_answered_to_a_client_that_still_sends_its_body(server: PageServer) -> None:
    head = f"POST /tidegate/page/jobs/one/stop HTTP/1.1\r\nHost: localhost:{server.port}\r\nContent-Length: 300\r\n\r\n"
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as connection:
        connection.sendall(head.encode())
        assert status(connection.recv(1 << 16)) == 401
        for _ in range(3):  # the second fails on a connection that was closed
            connection.sendall(b" " * 100)
            time.sleep(0.05)


def test_idle_connections_of_others_do_not_shut_the_page(browser: Browser) -> None:
    with idle_connections(browser.server.port):
        assert browser.ask("GET", "/tidegate/page/jobs")[0] == 200
        assert next(browser.events("/events"))[0] == "jobs"


def test_closed_pages_free_their_feed_and_too_many_are_refused(
    driver: Start, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver("one").running()
    feeds: list[live.Feeds] = []
    made = live.Feeds.stream

    def seen(self: live.Feeds, *arguments: Any) -> Any:
        self._most = 5
        feeds.append(self)
        return made(self, *arguments)

    monkeypatch.setattr(live.Feeds, "stream", seen)
    pages = [browser.events("/jobs/one/events") for _ in range(5)]
    assert [next(page)[0] for page in pages] == ["job"] * 5
    assert (feeds[0].readers, len(feeds[0]._feeds)) == (5, 1), "one producer for all pages"
    code, problem = browser.ask("GET", "/tidegate/page/jobs/one/events")
    assert code == 503 and "Close some" in problem["message"]
    for page in pages:
        page.close()  # type: ignore[attr-defined]
    eventually(lambda: feeds[0].readers == 0 and not feeds[0]._feeds, "everything is freed")


def test_page_that_reads_nothing_is_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "_READ_S", 0.2)
    ended: list[str] = []

    async def endless(scope: Any, receive: Any, send: Any) -> None:
        numbers = iter(range(1_000_000))

        async def make() -> live.Shown:
            return live.Shown("job", next(numbers), b"x" * 1_000_000)

        try:
            await live.Feeds().stream("job", make)(scope, receive, send)
        finally:
            ended.append("freed")

    monkeypatch.setattr(live, "PERIOD_S", 0.001)
    listening = socket.create_server(("127.0.0.1", 0))
    port = listening.getsockname()[1]
    served = Served("test", [listening], lambda: endless, "lost")
    try:
        with socket.create_connection(("127.0.0.1", port)) as silent:
            silent.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
            eventually(lambda: ended, "the server gave the page up while it was open")
    finally:
        served.close()


@pytest.mark.parametrize(
    "request_line",
    [
        b"\x00\x01\x02\r\n\r\n",
        b"GET\r\n\r\n",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET " + b"/a" * 40_000 + b" HTTP/1.1\r\n\r\n",
    ],
)
def test_garbage_is_answered_or_closed_and_the_page_continues(browser: Browser, request_line: bytes) -> None:
    answer = raw(browser.server.port, request_line)
    assert not answer or status(answer) in (400, 403, 404, 414, 431)
    assert browser.ask("GET", "/tidegate/page/jobs")[0] == 200


def test_invalid_bodies_are_answered_and_nothing_is_done(driver: Start, browser: Browser) -> None:
    driver("one").running()
    bodies = [b"{", b"[]", b'{"drain": "x"}', b'{"more": 1}', b"\xff", b"[" * 60_000, b"x" * 70_000]
    for body in bodies:
        code, problem = browser.ask("POST", "/tidegate/page/jobs/one/stop", body)
        assert code in (400, 413) and set(problem) == {"code", "message"}, body[:20]
    assert browser.page("/jobs/one")["card"]["state"] == "RUNNING"


# -- hostile texts -------------------------------------------------------------------------------------------------------


def test_hostile_names_are_data_in_json_and_never_markup(driver: Start, browser: Browser) -> None:
    hostile = "</script><img src=x onerror=alert(1)>\n\ndata: x\r\n"
    path = f"/tidegate/page/jobs/{'%3Cscript%3Ealert(1)%3C%2Fscript%3E'}"
    code, _ = browser.ask("GET", path)
    assert code == 404 and browser.headers["content-type"] == "application/json"
    feed = live.Shown("job", 1, json.dumps(hostile).encode())
    assert b"\n" not in feed.data
    code, shown = browser.ask("GET", "/tidegate/login?code=%22%3E%3Cscript%3Ealert(1)%3C/script%3E")
    assert code == 403 and "<script" not in shown


# -- beyond loopback -----------------------------------------------------------------------------------------------------


def test_beyond_loopback_a_secret_is_required(home: Path) -> None:
    with pytest.raises(ConfigurationError, match="needs a password or a token"):
        PageServer(RegistryJobs(), server="installation", host=ANYWHERE)
    with pytest.raises(ConfigurationError, match="no free port"):
        PageServer(RegistryJobs(), server="installation", host="192.0.2.1", token=TOKEN, ports=(8081,))


def test_bound_to_all_addresses_it_answers_to_addresses_and_given_names_only(home: Path) -> None:
    server = PageServer(RegistryJobs(), server="installation", host=ANYWHERE, token=TOKEN, names=("jobs.example",))
    try:
        asking = Browser(server)
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        codes = [
            asking.ask("GET", "/tidegate/page/jobs", headers={"Host": host, **bearer})[0]
            for host in ("jobs.example", "10.1.2.3:80", "[fe80::1]", "evil.example", "10.1.2.3.evil.example")
        ]
        assert codes == [200, 200, 200, 403, 403]
    finally:
        server.close()


def test_taken_port_is_said_and_the_next_free_one_is_used(home: Path) -> None:
    first = PageServer(RegistryJobs(), server="installation")
    try:
        with pytest.raises(ConfigurationError, match="The page has no free port"):
            PageServer(RegistryJobs(), server="installation", ports=(first.port,))
        second = PageServer(RegistryJobs(), server="installation", ports=(first.port, 0))
        assert second.port != first.port
        second.close()
    finally:
        first.close()


def test_tls_is_served_with_a_secure_cookie(home: Path, tmp_path: Path) -> None:
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    make = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    subprocess.run([*make, "-keyout", key, "-out", cert], check=True, capture_output=True)
    with pytest.raises(ConfigurationError, match="certificate or its key"):
        PageServer(RegistryJobs(), server="installation", tls=Tls(str(cert), str(tmp_path / "none")))
    server = PageServer(RegistryJobs(), server="installation", tls=Tls(str(cert), str(key)))
    try:
        context = ssl.create_default_context(cafile=str(cert))
        context.check_hostname = False
        connection = http.client.HTTPSConnection("127.0.0.1", server.port, context=context, timeout=60)
        connection.request("GET", server.login_address().partition(f":{server.port}")[2])
        answer = connection.getresponse()
        assert answer.status == 303 and "secure" in str(answer.headers["set-cookie"]).lower()
        connection.close()
    finally:
        server.close()


def test_tidegate_web_prints_an_address_that_logs_in(home: Path) -> None:
    command = [sys.executable, "-m", "tidegate.cli", "web", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as process:
        try:
            assert process.stdout is not None
            address = process.stdout.readline().strip()
            host, _, path = address.removeprefix("http://").partition("/")
            connection = http.client.HTTPConnection(host, timeout=60)
            connection.request("GET", f"/{path}")
            assert connection.getresponse().status == 303
            connection.close()
            assert process.stdout.readline().strip() != address, "a new address after the code was used"
        finally:
            process.terminate()
            process.wait()
    loose = subprocess.run(
        [sys.executable, "-m", "tidegate.cli", "web", "--bind", ANYWHERE], capture_output=True, text=True, check=False
    )
    assert loose.returncode == 10 and "--password-file" in loose.stderr

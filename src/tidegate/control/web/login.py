"""Who may use the page: codes that work once, sessions by cookie, passwords and tokens, and the gate before every path."""

from __future__ import annotations

import asyncio
import hashlib
import re
import secrets
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from html import escape
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import msgspec
from starlette.requests import Request
from starlette.responses import HTMLResponse, RedirectResponse, Response
from starlette.routing import Route

from tidegate.base.errors import ConfigurationError
from tidegate.control.messages import Code, Problem
from tidegate.control.serving import App, Receive, Scope, Send

CODE_S = 600.0
"""A code is for the person who reads the terminal now."""
SESSION_S = 12 * 3600.0
"""A working day without a request ends a session."""
_MOST_SESSIONS = 1_000
SHORTEST_SECRET = 12
"""Characters of a password or token: with 64 guesses a second, a random one of this length is never found."""
_GUESS_S, _MOST_GUESSES = 1.0, 64
_LARGEST_FORM = 4 << 10
CSRF_HEADER = "x-tidegate-csrf"
_SAFE = {"GET", "HEAD", "OPTIONS"}
_OPEN = re.compile(r"/|/favicon\.ico|/assets/.*|/tidegate/login")
"""Paths for everybody: the files of the page, which hold no data, and the login."""
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'self'; frame-ancestors 'none'; base-uri 'none'; form-action 'self'; object-src 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
)
SESSION = "tidegate.session"


@dataclass
class Session:
    """``csrf``: what a page must send with every change. ``used``: monotonic time of the latest request. ``over``: the events of
    its pages end."""

    csrf: str
    used: float
    over: bool = False


class Logins:
    """Codes and sessions. Usable from any thread. Secrets are kept as hashes, so a lookup says nothing about them by its time.

    ``password`` and ``token`` are secrets that the user set; None: there is none. ``code_used`` is called after a code was used.
    """

    def __init__(
        self,
        *,
        password: str | None = None,
        token: str | None = None,
        clock: Callable[[], float] = time.monotonic,
        code_used: Callable[[], None] = lambda: None,
    ) -> None:
        self._password, self._token = (None if each is None else _hash(each) for each in (password, token))
        self._clock, self.code_used = clock, code_used
        self._lock = threading.Lock()
        self._codes: dict[bytes, float] = {}
        self._sessions: dict[bytes, Session] = {}

    def new_code(self) -> str:
        code = secrets.token_urlsafe(24)
        with self._lock:
            now = self._clock()
            self._codes = {known: until for known, until in self._codes.items() if until > now}
            self._codes[_hash(code)] = now + CODE_S
        return code

    def begin(self, secret: str, *, by_password: bool = True) -> str | None:
        """Begin a session by a code or the password, and return its cookie; None if neither fits. A code fits once. Without
        ``by_password`` only a code is looked at."""
        given = _hash(secret)
        with self._lock:
            until = self._codes.pop(given, None)
            by_code = until is not None and until > self._clock()
            fits = by_password and self._password is not None and secrets.compare_digest(given, self._password)
            if not by_code and not fits:
                return None
            cookie = secrets.token_urlsafe(32)
            while len(self._sessions) >= _MOST_SESSIONS:
                self._end(min(self._sessions, key=lambda known: self._sessions[known].used))
            self._sessions[_hash(cookie)] = Session(secrets.token_urlsafe(24), self._clock())
        if by_code:
            # A terminal may be gone, or be stopped with Ctrl-S: neither is a reason to keep anybody waiting.
            threading.Thread(target=self._tell, name="tidegate-code", daemon=True).start()
        return cookie

    def _tell(self) -> None:
        with suppress(OSError):
            self.code_used()

    def session(self, cookie: str) -> Session | None:
        with self._lock:
            found = self._sessions.get(_hash(cookie))
            if found is None or self._clock() - found.used > SESSION_S:
                self._end(_hash(cookie))
                return None
            found.used = self._clock()
            return found

    def end(self, cookie: str) -> None:
        with self._lock:
            self._end(_hash(cookie))

    def _end(self, known: bytes) -> None:
        if (session := self._sessions.pop(known, None)) is not None:
            session.over = True

    def accepts_token(self, text: str) -> bool:
        return self._token is not None and secrets.compare_digest(_hash(text), self._token)

    @property
    def has_password(self) -> bool:
        return self._password is not None


def _hash(text: str) -> bytes:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).digest()


def read_secret(file: str, option: str) -> str:
    """Read a password or token. Raise ConfigurationError if the file has none, others can read it, or it is short."""
    found, cure = "", f"write one into the file: (umask 077; openssl rand -hex 32 > {file})"
    try:
        secret = Path(file).read_text().strip()
        mode = Path(file).stat().st_mode & 0o077
        if not secret:
            found = "an empty file"
        elif len(secret) < SHORTEST_SECRET:
            found = f"{len(secret)} characters; {SHORTEST_SECRET} are needed"
        elif mode:
            found, cure = "a file that other users can read", f"chmod 600 {file}"
    except (OSError, UnicodeDecodeError) as error:
        secret, found = "", f"{type(error).__name__}: {error}"
    if found:
        raise ConfigurationError(f"{option} names no file with a secret", where=file, found=found, cure=cure)
    return secret


# -- the gate --------------------------------------------------------------------------------------------------------------


class RequestGate:
    """Refuse a request before any path sees it, and give every answer the headers that protect the page.

    ``hosts``: the names that a request may call this server by, with any port; None: every name that is an IP address too.
    A request needs the token or the cookie of a session. A change by cookie also needs the session's CSRF token.
    """

    def __init__(self, app: App, logins: Logins, *, hosts: Iterable[str], any_address: bool, cookie: str) -> None:
        self._app, self._logins, self._cookie = app, logins, cookie
        self._hosts = {host.lower() for host in hosts}
        self._any_address = any_address

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":  # web sockets are not served
            return None

        async def protected(message: dict[str, object]) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *HEADERS]}  # type: ignore[misc]
            await send(message)

        refusal = self._refusal(scope)
        if refusal is None:
            return await self._app(scope, receive, protected)  # type: ignore[arg-type]
        status, message = refusal
        headers = [(b"content-type", b"application/json"), (b"cache-control", b"no-store"), (b"connection", b"close")]
        headers += [(b"www-authenticate", b"Bearer")] if status == 401 else []
        body = msgspec.json.encode(Problem(Code.UNAUTHORIZED, message))
        await protected({"type": "http.response.start", "status": status, "headers": headers})
        await protected({"type": "http.response.body", "body": body})
        return None

    def _refusal(self, scope: Scope) -> tuple[int, str] | None:
        named = _all(scope, b"host")
        if len(named) != 1 or not self._is_ours(named[0]):
            return 403, "The Host of a request must be a name of this server. Behind a proxy, name it with --name."
        # The origin of a form is "null" under our Referrer-Policy. The login form proves itself by its secret.
        is_login = scope["path"] == "/tidegate/login"
        if not all(_is_same(o, named[0]) or (is_login and o == "null") for o in _all(scope, b"origin")):
            return 403, "Requests from web pages of another origin are refused."
        if any(site not in ("same-origin", "none") for site in _all(scope, b"sec-fetch-site")) and not (
            scope["method"] == "GET" and _all(scope, b"sec-fetch-mode") == ["navigate"]
        ):
            return 403, "Requests from other web pages are refused."
        return None if _OPEN.fullmatch(scope["path"]) else self._without_right(scope)

    def _without_right(self, scope: Scope) -> tuple[int, str] | None:
        given = _all(scope, b"authorization")
        if given:
            scheme, _, token = given[0].partition(" ")
            if len(given) == 1 and scheme.lower() == "bearer" and self._logins.accepts_token(token.strip()):
                return None
            return 401, "The token is not the one of this server."
        session = self._logins.session(cookie_of(scope, self._cookie) or "")
        if session is None:
            return 401, "Log in first: open /tidegate/login, or send Authorization: Bearer <token>."
        if scope["method"] not in _SAFE:
            sent = _all(scope, CSRF_HEADER.encode())
            if len(sent) != 1 or not secrets.compare_digest(sent[0].encode(), session.csrf.encode()):
                return 403, "A change needs the header X-Tidegate-CSRF with the csrf of /tidegate/page/me."
        scope[SESSION] = session
        return None

    def _is_ours(self, named: str) -> bool:
        try:
            host = (urlsplit(f"//{named.strip()}").hostname or "").lower()
            _ = urlsplit(f"//{named.strip()}").port
        except ValueError:
            return False
        clean = re.fullmatch(r"[a-z0-9.:-]+", host) is not None and "@" not in named
        return clean and (host in self._hosts or (self._any_address and _is_address(host)))


def _is_address(host: str) -> bool:
    return ":" in host or re.fullmatch(r"\d+\.\d+\.\d+\.\d+", host) is not None


def _is_same(origin: str, host: str) -> bool:
    """Return whether the page comes from this server. A proxy may end TLS, so both schemes count."""
    scheme, _, rest = origin.strip().lower().partition("://")
    return scheme in ("http", "https") and rest == host.strip().lower()


def _all(scope: Scope, name: bytes) -> list[str]:
    return [value.decode("latin-1") for key, value in scope["headers"] if key.lower() == name]


def cookie_of(scope: Scope, name: str) -> str | None:
    for header in _all(scope, b"cookie"):
        for part in header.split(";"):
            key, _, value = part.strip().partition("=")
            if key == name:
                return value
    return None


# -- paths -----------------------------------------------------------------------------------------------------------------

_FORM = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>Tidegate: log in</title><link rel="stylesheet" href="/assets/page.css"></head>
<body><main><h1>Tidegate</h1>{problem}
<form method="post" action="/tidegate/login">
<label for="secret">{label}</label>
<input id="secret" name="secret" type="password" autocomplete="current-password" required autofocus>
<button>Log in</button>
</form><p>{hint}</p></main></body></html>
"""
_HINT = "The terminal that runs the server prints an address with a new code. A code works once, and for 10 minutes."


def login_routes(logins: Logins, *, cookie: str, secure: bool) -> list[Route]:
    """Return the paths of the login. ``secure``: the cookie is for TLS only."""
    guesses = 0

    async def login(request: Request) -> Response:
        nonlocal guesses
        given = request.query_params.get("code") if request.method == "GET" else await _secret(request)
        if given is None:
            return form(None)
        # While many guess, passwords are not looked at: a guess that is answered at once could be followed by thousands. Nobody
        # guesses a code, so it always opens the page.
        # A password stands in no address, which browsers and proxies remember.
        begun = logins.begin(given, by_password=request.method == "POST" and guesses < _MOST_GUESSES)
        if begun is not None:
            answer = RedirectResponse("/", 303)
            answer.set_cookie(cookie, begun, httponly=True, samesite="strict", path="/", secure=secure)
            answer.headers["cache-control"] = "no-store"
            return answer
        if guesses >= _MOST_GUESSES:
            return form("Too many people guess at this moment. Try again in a minute, or log in with a code.", 429)
        guesses += 1
        try:
            await asyncio.sleep(_GUESS_S)
        finally:
            guesses -= 1
        return form("This code or password is not valid, has expired, or was used before.", 403)

    def form(problem: str | None, status: int = 200) -> Response:
        what = "Password or code" if logins.has_password else "Code"
        shown = "" if problem is None else f'<p role="alert">{escape(problem)}</p>'
        page = _FORM.format(problem=shown, label=what, hint=_HINT)
        return HTMLResponse(page, status, headers={"cache-control": "no-store"})

    async def logout(request: Request) -> Response:
        logins.end(cookie_of(request.scope, cookie) or "")
        answer = Response(b"{}", media_type="application/json")
        answer.delete_cookie(cookie, path="/", httponly=True, samesite="strict", secure=secure)
        return answer

    return [
        Route("/tidegate/login", login, methods=["GET", "POST"]),
        Route("/tidegate/logout", logout, methods=["POST"]),
    ]


async def _secret(request: Request) -> str:
    content = bytearray()
    async for part in request.stream():
        content += part
        if len(content) > _LARGEST_FORM:
            return ""
    fields = parse_qs(content.decode("utf-8", "replace"))
    return fields.get("secret", [""])[0].strip()

"""The server of the page: for all jobs of the installation, or for those of one driver."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, NamedTuple

from tidegate.base.errors import ConfigurationError
from tidegate.control.server import Served
from tidegate.control.shown import ShownJobs
from tidegate.control.web.login import Logins, login_routes

if TYPE_CHECKING:
    from tidegate.control.serving import App
    from tidegate.control.web.programs import Programs
    from tidegate.control.web.restarts import Restarts

LOOPBACK = "127.0.0.1"
DEFAULT_PORT, NEXT_PORTS = 8081, 20
_LOOPBACK_NAMES = ("127.0.0.1", "localhost", "::1")


class Tls(NamedTuple):
    """Files in PEM form."""

    certificate: str
    key: str


class PageServer:
    """Listens as soon as the object exists, at the first free one of ``ports``, until ``close``.

    ``host`` beyond loopback needs ``password`` or ``token``. ``names``: by which others call this host, for example
    through a proxy. Raise ConfigurationError if that is not so, or no port is free.
    """

    def __init__(
        self,
        jobs: ShownJobs,
        *,
        server: str,
        host: str = LOOPBACK,
        ports: Iterable[int] = (0,),
        names: Iterable[str] = (),
        password: str | None = None,
        token: str | None = None,
        tls: Tls | None = None,
        programs: Programs | None = None,
        restarts: Restarts | None = None,
        code_used: Callable[[], None] = lambda: None,
    ) -> None:
        if not is_loopback(host) and password is None and token is None:
            raise ConfigurationError(
                "Beyond loopback the page needs a password or a token",
                found=f"--bind {host}",
                cure="give --password-file FILE or --token-file FILE, and --cert and --key for TLS",
            )
        if tls is not None:
            _check(tls)
        self._scheme = "http" if tls is None else "https"
        listening = _listen(host, ports)
        self.host, self.port = host, int(listening.getsockname()[1])
        self.logins = logins = Logins(password=password, token=token, code_used=code_used)
        cookie = f"tidegate-{self.port}"
        wildcard = host in ("0.0.0.0", "::", "")  # noqa: S104  looked at, not listened at
        known = {*_LOOPBACK_NAMES, *names} | ({host} if not wildcard else set())
        if not is_loopback(host):
            known |= {socket.gethostname(), socket.getfqdn()}
        self._shown_host = socket.gethostname() if wildcard else "localhost" if host in _LOOPBACK_NAMES else host

        def app() -> App:
            from starlette.applications import Starlette

            from tidegate.control.flink.routes import flink_routes
            from tidegate.control.web.login import RequestGate
            from tidegate.control.web.restarts import FlinkPrograms
            from tidegate.control.web.routes import handlers, page_routes
            from tidegate.control.web.snapshots import dispose_of

            routes = [
                *login_routes(logins, cookie=cookie, secure=tls is not None),
                *page_routes(jobs, server=server, programs=programs, restarts=restarts),
                *flink_routes(
                    jobs,
                    programs=None if programs is None or restarts is None else FlinkPrograms(programs, restarts),
                    dispose=lambda path: dispose_of(jobs, path),
                ),
            ]
            pages = Starlette(routes=routes, exception_handlers=handlers())
            return RequestGate(pages, logins, hosts=known, any_address=wildcard, cookie=cookie)

        self._served = Served("tidegate-web", [listening], app, "the page is not shown any more", tls)

    @property
    def address(self) -> str:
        host = f"[{self._shown_host}]" if ":" in self._shown_host else self._shown_host
        return f"{self._scheme}://{host}:{self.port}"

    def login_address(self) -> str:
        """Return an address that logs one person in, once."""
        return f"{self.address}/tidegate/login?code={self.logins.new_code()}"

    @property
    def is_open(self) -> bool:
        return self._served.is_open

    def close(self) -> None:
        self._served.close()


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _check(tls: Tls) -> None:
    import ssl

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigurationError(
            "The certificate or its key cannot be used",
            where=f"{tls.certificate}, {tls.key}",
            found=f"{type(error).__name__}: {error}",
            cure="give --cert and --key as PEM files that belong together",
        ) from None


def _listen(host: str, ports: Iterable[int]) -> socket.socket:
    tried, reason = [], OSError("no port is given")
    for port in ports:
        tried.append(port)
        try:
            family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
            return socket.create_server((host, port), family=family)
        except OSError as error:
            reason = error
    shown = f"{tried[0]}" if len(tried) == 1 else f"{tried[0]} to {tried[-1]}" if tried else "none"
    raise ConfigurationError(
        "The page has no free port",
        where=f"{host}, port {shown}",
        found=f"{reason}",
        cure="give another port with --port, or 0 for any free one; tidegate web may run already",
    )

"""A Redis server: its address without the password, a client, and its errors as errors of ours."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tidegate.base import secrets
from tidegate.base.errors import AccessError, ConfigurationError, ServiceError, TidegateError
from tidegate.connectors.formats.libraries import library

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RedisServer:
    """The server at ``redis://[user[:password]@]host[:port][/database]``. ``rediss://`` means TLS."""

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("redis", "rediss", "unix"):
            raise ConfigurationError(
                "The URL of a Redis sink is invalid",
                where="RedisSink",
                found=f"one that begins with {self.url.partition(':')[0][:20]!r}",
                cure="pass a URL of redis, rediss or unix, for example redis://localhost:6379/0",
            )
        secrets.hide([urlsplit(self.url).password or ""])

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"Redis at {parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"

    def client(self) -> Any:
        return _redis().from_url(self.url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)

    def settings(self, client: Any) -> dict[str, str] | None:
        """Read the settings that decide whether the server keeps confirmed writes.

        None: the server does not report them (a hosted server, or a user without the right).
        """
        names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
        try:
            return {name: value for asked in names for name, value in client.config_get(asked).items()}
        except _redis().exceptions.ResponseError:
            return None

    def is_away(self, error: BaseException) -> bool:
        """Return whether a retry may help. In the client a wrong password is a kind of connection error."""
        kinds = _redis().exceptions
        if isinstance(error, kinds.AuthenticationError | kinds.AuthorizationError):
            return False
        away = (kinds.ConnectionError, kinds.TimeoutError, kinds.BusyLoadingError, kinds.ReadOnlyError, OSError)
        # MISCONF: the server cannot write to its disk, and refuses writes until it can.
        return isinstance(error, (*away, kinds.OutOfMemoryError)) or any(no in str(error) for no in ("OOM", "MISCONF"))

    def problem(self, error: BaseException) -> TidegateError:
        """Translate an error of the client. Neither the client's messages nor ours contain a password."""
        kinds = _redis().exceptions
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, kinds.AuthenticationError | kinds.AuthorizationError):
            return AccessError(
                "The Redis server refuses the user or the password of the sink",
                where=str(self),
                found=text,
                cure="check user and password in the URL, and the user's rights (ACL GETUSER)",
            )
        if self.is_away(error):
            return ServiceError(
                "The Redis server of a sink does not answer",
                where=str(self),
                found=text,
                cure="start the server; check host and port of the URL",
            )
        return ServiceError(
            "The Redis server refuses a command of the sink",
            where=str(self),
            found=text,
            cure="see docs/redis.md for the commands and settings that the sink needs",
        )


def _redis() -> Any:
    return library("redis", "RedisSink", "redis")

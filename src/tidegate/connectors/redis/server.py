"""One Redis server: its address without the password, a client, and its errors in our words."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from tidegate.base import secrets
from tidegate.base.errors import AccessError, ConfigurationError, ServiceError, TidegateError

_TIMEOUT_S = 10.0


@dataclass(frozen=True)
class RedisServer:
    """``url``: ``redis://[user[:password]@]host[:port][/database]``, ``rediss://`` for TLS."""

    url: str = field(repr=False)

    def __post_init__(self) -> None:
        if urlsplit(self.url).scheme not in ("redis", "rediss", "unix"):
            raise ConfigurationError(
                "A Redis sink takes the URL of a server",
                where="RedisSink",
                found=f"one that begins with {self.url.partition(':')[0][:20]!r}",
                cure="for example redis://localhost:6379/0",
            )
        secrets.hide([urlsplit(self.url).password or ""])

    def __str__(self) -> str:
        parts = urlsplit(self.url)
        return f"Redis at {parts.hostname or 'localhost'}:{parts.port or 6379}{parts.path}"

    def client(self) -> Any:
        return self._library().from_url(self.url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)

    def _library(self) -> Any:
        try:
            import redis
        except ImportError as error:
            raise ConfigurationError(
                "A Redis sink needs the package redis",
                found=f"it cannot be imported: {error}",
                cure="pip install 'tidegate[redis]', in the environment of the workers too",
            ) from error
        return redis

    def settings(self, client: Any) -> dict[str, str] | None:
        """What decides whether it keeps what it confirms. None: it does not say (a hosted server, a user without the right)."""
        names = ("appendonly", "appendfsync", "maxmemory", "maxmemory-policy")
        try:
            return {name: value for asked in names for name, value in client.config_get(asked).items()}
        except self._library().exceptions.ResponseError:
            return None

    def is_away(self, error: BaseException) -> bool:
        """Whether trying again may help. A wrong password is a kind of connection error there."""
        kinds = self._library().exceptions
        if isinstance(error, kinds.AuthenticationError | kinds.AuthorizationError):
            return False
        away = (kinds.ConnectionError, kinds.TimeoutError, kinds.BusyLoadingError, kinds.ReadOnlyError, OSError)
        # MISCONF: it cannot write to its own disk, and refuses until it can.
        return isinstance(error, (*away, kinds.OutOfMemoryError)) or any(no in str(error) for no in ("OOM", "MISCONF"))

    def problem(self, error: BaseException) -> TidegateError:
        """No message of the client's shows a password, and none of ours."""
        kinds = self._library().exceptions
        text = f"{type(error).__name__}: {error}"
        if isinstance(error, kinds.AuthenticationError | kinds.AuthorizationError):
            return AccessError(
                "The Redis server must let the sink in",
                where=str(self),
                found=f"it refuses the user or the password: {text}",
                cure="check user and password of the URL, and what the user may do (ACL GETUSER)",
            )
        if self.is_away(error):
            return ServiceError(
                "A Redis sink needs a server that answers",
                where=str(self),
                found=text,
                cure="start it, check host and port",
            )
        return ServiceError("The Redis server refuses what the sink asks", where=str(self), found=text)

"""A Redis server for tests, with a password and a durable log."""

from __future__ import annotations

from typing import Any

import redis

from tests.servers.databases import PASSWORD
from tests.servers.server import Server, binary


def redis_server(*more: str) -> Server:
    """``more``: options after ours."""
    program = binary("redis-server", "redis-server")

    def command(server: Server) -> list[str]:
        options = ["--bind", "127.0.0.1", "--save", "", "--appendonly", "yes", "--appendfsync", "always"]
        return [
            program,
            "--port",
            str(server.port),
            *options,
            "--requirepass",
            PASSWORD,
            "--dir",
            str(server.directory),
            *more,
        ]

    return Server("redis", command, answers=lambda s: client_of(s).ping())


def url_of(server: Server, password: str = PASSWORD) -> str:
    return f"redis://:{password}@127.0.0.1:{server.port}/0"


def client_of(server: Server) -> Any:
    return redis.from_url(url_of(server))

"""Which Python driver a JDBC URL needs. Each is an extra, and imported when a program names its database."""

from __future__ import annotations

from types import ModuleType

from tidegate.base.errors import ConfigurationError


def driver(kind: str) -> ModuleType:
    """A module with ``database_of`` and ``connect``. ``kind``: what follows ``jdbc:`` in the URL."""
    try:
        if kind == "postgresql":
            from tidegate.connectors.jdbc import postgresql

            return postgresql
        from tidegate.connectors.jdbc import mysql

        return mysql
    except ModuleNotFoundError as missing:
        extra = "postgresql" if kind == "postgresql" else "mysql"
        raise ConfigurationError(
            "A JDBC sink needs the Python driver of its database",
            where=f"jdbc:{kind}:...",
            found=str(missing),
            cure=f"pip install 'tidegate[{extra}]'",
        ) from None

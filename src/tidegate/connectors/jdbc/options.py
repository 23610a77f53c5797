"""The options of a JDBC sink: the address of the database, and the batches of rows."""

from __future__ import annotations

from tidegate.base import secrets
from tidegate.base.arguments import expect_int, expect_text
from tidegate.base.errors import ConfigurationError, ProgramError

_BATCH_SIZE, _MAX_RETRIES = 5000, 3


class JdbcConnectionOptions:
    """Address and user of the database. Made by the builder. The repr never shows the password."""

    def __init__(self, url: str, driver_name: str | None, user_name: str | None, password: str | None) -> None:
        self._url, self._driver_name, self._user_name, self._password = url, driver_name, user_name, password
        secrets.hide([password or ""])

    def get_db_url(self) -> str:
        """Return the URL."""
        return self._url

    def get_driver_name(self) -> str | None:
        """The given name. No Java driver is loaded: the URL names the database."""
        return self._driver_name

    def get_user_name(self) -> str | None:
        """Return the user, or None."""
        return self._user_name

    def get_password(self) -> str | None:
        """Return the password, or None."""
        return self._password

    def __repr__(self) -> str:
        return f"JdbcConnectionOptions({secrets.masked(self._url.partition('?')[0])!r}, user {self._user_name!r})"

    class JdbcConnectionOptionsBuilder:
        """The URL is required. User and password may be in the URL instead."""

        def __init__(self) -> None:
            self._url: str | None = None
            self._driver_name: str | None = None
            self._user_name: str | None = None
            self._password: str | None = None

        def with_url(self, url: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """``jdbc:postgresql://host:5432/database``, ``jdbc:mariadb://host:3306/database`` or ``jdbc:mysql://...``."""
            self._url = expect_text("with_url", url, '"jdbc:postgresql://host:5432/database"')
            return self

        def with_driver_name(self, driver_name: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """Accepted and not used: the URL names the database."""
            self._driver_name = expect_text("with_driver_name", driver_name, '"org.postgresql.Driver"')
            return self

        def with_user_name(self, user_name: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """Set the user of the database."""
            self._user_name = expect_text("with_user_name", user_name, '"writer"')
            return self

        def with_password(self, password: str) -> JdbcConnectionOptions.JdbcConnectionOptionsBuilder:
            """Set the password. It appears in no message, log or file of Tidegate."""
            if not isinstance(password, str):
                raise ConfigurationError(
                    "A password is a text",
                    where="with_password",
                    found=type(password).__name__,
                    cure="pass a str",
                )
            self._password = password
            return self

        def build(self) -> JdbcConnectionOptions:
            """Return the options. ``with_url`` must have been called."""
            if self._url is None:
                raise ProgramError(
                    "JDBC connection options are not complete",
                    found="without with_url(...)",
                    cure='call with_url("jdbc:postgresql://host:5432/database")',
                )
            return JdbcConnectionOptions(self._url, self._driver_name, self._user_name, self._password)


class JdbcExecutionOptions:
    """Sizes of batches and retries. Made by ``builder``; ``defaults`` are batches of 5,000 rows and 3 retries."""

    def __init__(self, batch_interval_ms: int, batch_size: int, max_retries: int) -> None:
        self._batch_interval_ms, self._batch_size, self._max_retries = batch_interval_ms, batch_size, max_retries

    def get_batch_interval_ms(self) -> int:
        """Return how many milliseconds rows wait for a full batch, at most until the end of their round."""
        return self._batch_interval_ms

    def get_batch_size(self) -> int:
        """Return after how many records a batch is written."""
        return self._batch_size

    def get_max_retries(self) -> int:
        """Return how often a failed batch is written again."""
        return self._max_retries

    @staticmethod
    def defaults() -> JdbcExecutionOptions:
        """Return the options that a sink has without any."""
        return JdbcExecutionOptions.Builder().build()

    @staticmethod
    def builder() -> JdbcExecutionOptions.Builder:
        """Return a builder with the defaults."""
        return JdbcExecutionOptions.Builder()

    class Builder:
        """All options have defaults."""

        def __init__(self) -> None:
            self._batch_interval_ms, self._batch_size, self._max_retries = 0, _BATCH_SIZE, _MAX_RETRIES

        def with_batch_size(self, size: int) -> JdbcExecutionOptions.Builder:
            """Send a batch when it has this number of rows; 0: at the end of each round only."""
            self._batch_size = _not_negative("with_batch_size", size)
            return self

        def with_batch_interval_ms(self, interval_ms: int) -> JdbcExecutionOptions.Builder:
            """Send rows that have waited this long; 0: rows wait for a full batch or for the end of the round."""
            self._batch_interval_ms = _not_negative("with_batch_interval_ms", interval_ms)
            return self

        def with_max_retries(self, max_retries: int) -> JdbcExecutionOptions.Builder:
            """How often a batch is sent again after a failure of the server. Then the round fails."""
            self._max_retries = _not_negative("with_max_retries", max_retries)
            return self

        def build(self) -> JdbcExecutionOptions:
            """Return the options."""
            return JdbcExecutionOptions(self._batch_interval_ms, self._batch_size, self._max_retries)


def _not_negative(where: str, number: int) -> int:
    if expect_int(where, number, "a whole number from 0") < 0:
        raise ConfigurationError(f"{where} takes a whole number from 0", found=str(number), cure="pass 0 or more")
    return number

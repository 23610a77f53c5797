"""PyFlink's JdbcSink: execute a statement for every record, at least once."""

from __future__ import annotations

import logging
import re
import time
from types import ModuleType
from typing import Any
from urllib.parse import parse_qsl

from tidegate.base import faults, secrets
from tidegate.base.arguments import expect_text, wrong
from tidegate.base.errors import ConfigurationError, ProgramError, RowError, ServiceError, TidegateError
from tidegate.common.conversion import Conversion
from tidegate.common.typeinfo import (
    BasicArrayTypeInfo,
    BasicTypeInfo,
    DateTypeInfo,
    LocalTimeTypeInfo,
    ObjectArrayTypeInfo,
    PrimitiveArrayTypeInfo,
    RowTypeInfo,
    TimestampTypeInfo,
    TimeTypeInfo,
    TupleTypeInfo,
    TypeInformation,
    is_bytes,
)
from tidegate.common.types import Row
from tidegate.connectors.functions.function_sink import AddedSink
from tidegate.connectors.jdbc.options import JdbcConnectionOptions, JdbcExecutionOptions
from tidegate.connectors.jdbc.statement import Batches, Statement
from tidegate.connectors.sql.database import Database
from tidegate.operators.contracts.sink import Prepared, Publication, SinkGuarantee, SinkWriter, WriterContext
from tidegate.operators.loop.blame import reprlib_repr

log = logging.getLogger(__name__)

_URL = re.compile(r"jdbc:(postgresql|mysql|mariadb):(?://([^/?]*)/?)?/?([^?]*)(?:\?(.*))?", re.DOTALL)
_SCALARS = (BasicTypeInfo, DateTypeInfo, TimeTypeInfo, TimestampTypeInfo, LocalTimeTypeInfo)
_ARRAYS = (PrimitiveArrayTypeInfo, BasicArrayTypeInfo, ObjectArrayTypeInfo)
_PAUSE_S = 1.0
"""The pause before the second retry; each further pause is longer by this."""


class JdbcSink(AddedSink):
    """Made by ``sink``. Rows are in the database before the checkpoint that covers them is complete. After a failure rows are
    written again: with a statement that may be repeated (an upsert) the table is right all the same."""

    publication = Publication.ROUND
    guarantee = SinkGuarantee.NONE
    to_raise = "PostgreSqlSink or MySqlSink with DeliveryGuarantee.EXACTLY_ONCE"

    def __init__(
        self,
        kind: str,
        database: Database,
        statement: Statement,
        types: list[TypeInformation],
        execution: JdbcExecutionOptions,
    ) -> None:
        self.kind, self.database, self.statement = kind, database, statement
        self.types, self.execution = types, execution

    @staticmethod
    def sink(
        sql: str,
        type_info: RowTypeInfo | TupleTypeInfo,
        jdbc_connection_options: JdbcConnectionOptions,
        jdbc_execution_options: JdbcExecutionOptions | None = None,
    ) -> JdbcSink:
        """Make a sink for ``add_sink`` that executes a statement for each record. ``sql`` has a ``?`` for each field of
        ``type_info``, in the same order."""
        if not isinstance(jdbc_connection_options, JdbcConnectionOptions):
            cure = "JdbcConnectionOptions.JdbcConnectionOptionsBuilder()...build()"
            raise wrong("JdbcSink.sink", "JdbcConnectionOptions", jdbc_connection_options, cure)
        execution = jdbc_execution_options or JdbcExecutionOptions.defaults()
        if not isinstance(execution, JdbcExecutionOptions):
            raise wrong("JdbcSink.sink", "JdbcExecutionOptions", execution, "JdbcExecutionOptions.builder()...build()")
        if not isinstance(type_info, RowTypeInfo | TupleTypeInfo):
            raise wrong("JdbcSink.sink", "a row type", type_info, "Types.ROW([Types.INT(), Types.STRING()])")
        kind, database = _database(jdbc_connection_options)
        statement = Statement.parsed(
            expect_text("JdbcSink.sink", sql, '"INSERT INTO t (id, name) VALUES (?, ?)"'),
            postgresql=kind == "postgresql",
        )
        types = type_info.get_field_types()
        if statement.placeholders != len(types):
            raise ProgramError(
                "The statement of a JDBC sink needs one placeholder for each field of its type",
                where="JdbcSink.sink",
                found=f"{statement.placeholders} placeholders and {len(types)} fields in {type_info}",
                cure="write a ? for each field; PostgreSQL's operator ? is written ??",
            )
        for number, info in enumerate(types):
            if not isinstance(info, _SCALARS) and not (
                is_bytes(info) or (kind == "postgresql" and isinstance(info, _ARRAYS))
            ):
                raise ProgramError(
                    "The database has no type for a field of the JDBC sink",
                    where=f"JdbcSink.sink, field {number}",
                    found=str(info),
                    cure="map the field to a text, a number, a time or bytes, for example with json.dumps",
                )
        return JdbcSink(kind, database, statement, types, execution)

    def validate(self) -> None:
        """Check that the database accepts the user, and knows the tables and columns of the statement."""
        self.connect(patient=False).close()

    def connect(self, *, patient: bool = True) -> Batches:
        """``patient``: wait a while for a server that is down."""
        made: Batches = _driver(self.kind).connect(self.database, self.statement, self.types, patient=patient)
        return made

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _JdbcWriter(self)


def _database(options: JdbcConnectionOptions) -> tuple[str, Database]:
    url = options.get_db_url()
    found = _URL.fullmatch(url)
    if found is None:
        known = re.match(r"jdbc:[\w]+", url)
        raise ConfigurationError(
            "A JDBC sink writes to PostgreSQL, MariaDB or MySQL",
            where="JdbcSink.sink",
            found=f"{known[0]}:..." if known else "another text (not shown: it may hold a password)",
            cure='with_url("jdbc:postgresql://host:5432/database"), or jdbc:mariadb:, or jdbc:mysql:',
        )
    kind, authority, name, query = found.groups(default="")
    parameters = dict(parse_qsl(query, keep_blank_values=True))
    password = options.get_password()
    if password is None:
        password = parameters.get("password")
    secrets.hide([password or "", parameters.get("password", "")])
    database, ignored = _driver(kind).database_of(authority, name, parameters, options.get_user_name(), password)
    if ignored:
        log.warning("JdbcSink: parameters of the URL without a counterpart are ignored: %s", ", ".join(ignored))
    return kind, database


def _driver(kind: str) -> ModuleType:
    """The module with ``database_of`` and ``connect`` for a database. Its Python driver is an extra, so it is imported late."""
    try:
        if kind == "postgresql":
            from tidegate.connectors.jdbc import postgresql

            return postgresql
        from tidegate.connectors.jdbc import mysql

        return mysql
    except ModuleNotFoundError as missing:
        extra = "postgresql" if kind == "postgresql" else "mysql"
        raise ConfigurationError(
            "The Python driver for the database of the JDBC sink is missing",
            where=f"jdbc:{kind}:...",
            found=str(missing),
            cure=f"pip install 'tidegate[{extra}]'",
        ) from None


class _JdbcWriter(SinkWriter):
    """Write the rows of a round in batches. The last batch is written before the round is acknowledged."""

    def __init__(self, sink: JdbcSink) -> None:
        self._sink = sink
        self._size = sink.execution.get_batch_size()
        self._interval_s = sink.execution.get_batch_interval_ms() / 1000
        self._convert = Conversion(TupleTypeInfo(sink.types)).call
        self._rows: list[tuple[Any, ...]] = []
        self._since = 0.0
        self._batches: Batches | None = None

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not self._rows:
            self._since = time.monotonic()
        self._rows += map(self._row, values)
        size = self._size
        if size and len(self._rows) >= size:
            whole = len(self._rows) - len(self._rows) % size
            for start in range(0, whole, size):
                self._write(self._rows[start : start + size])
            self._rows = self._rows[whole:]
        elif self._interval_s and time.monotonic() - self._since >= self._interval_s:
            self._flush()

    def _row(self, value: Any) -> tuple[Any, ...]:
        fields = value._values if isinstance(value, Row) else value
        if not isinstance(fields, tuple | list) or len(fields) != len(self._sink.types):
            raise RowError(
                f"A record of the JDBC sink needs {len(self._sink.types)} fields, as its type has",
                found=reprlib_repr(value),
                cure="map the records to rows or tuples with the fields of the type",
            )
        try:
            converted: tuple[Any, ...] = self._convert(tuple(fields))
        except TidegateError as error:
            raise error.within(f"JDBC sink; row {reprlib_repr(value)}") from None
        return converted

    def _flush(self) -> None:
        if self._rows:
            self._write(self._rows)
            self._rows = []

    def _write(self, rows: list[tuple[Any, ...]]) -> None:
        """Retry a batch after a failure of the server, on a new connection. A batch whose commit broke is retried too, although
        it may be in the table already."""
        retries = self._sink.execution.get_max_retries()
        for attempt in range(retries + 1):
            try:
                if self._batches is None:
                    self._batches = self._sink.connect()
                faults.point("K1.jdbc.batch", rows=len(rows))
                return self._batches.write(rows)
            except ServiceError as error:
                self.close()
                if attempt == retries or not error.restart_helps:
                    raise
                log.warning(
                    "a batch of %d rows is sent again (%d of %d retries): %s", len(rows), attempt + 1, retries, error
                )
                time.sleep(_PAUSE_S * attempt)
        return None

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        self._flush()
        faults.point("K1.jdbc.written")
        return Prepared()

    def close(self) -> None:
        batches, self._batches = self._batches, None
        if batches is not None:
            batches.close()

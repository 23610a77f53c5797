"""JDBC's placeholders and URLs: what is a placeholder, and where a URL leads to; without a server."""

from __future__ import annotations

import logging
import pickle
from typing import Any

import pytest

from tidegate.base.errors import ArgumentTypeError, ConfigurationError, ProgramError, RowError
from tidegate.common import Types
from tidegate.connectors.jdbc.sink import JdbcSink as OurSink
from tidegate.connectors.jdbc.statement import Statement
from tidegate.connectors.mysql.sink import MySqlDatabase
from tidegate.connectors.postgresql.sink import PostgreSqlDatabase
from tidegate.datastream.connectors.jdbc import JdbcConnectionOptions, JdbcExecutionOptions, JdbcSink
from tidegate.operators.contracts.sink import SinkGuarantee, WriterContext

SECRET = "hunter2-planted"
ROW = Types.ROW([Types.INT(), Types.STRING()])


def options(url: str, user: str | None = "tide", password: str | None = SECRET) -> JdbcConnectionOptions:
    builder = JdbcConnectionOptions.JdbcConnectionOptionsBuilder().with_url(url)
    builder.with_driver_name("org.postgresql.Driver")
    if user is not None:
        builder.with_user_name(user)
    if password is not None:
        builder.with_password(password)
    return builder.build()


def sink(url: str = "jdbc:postgresql://host/db", sql: str = "INSERT INTO t VALUES (?, ?)", **given: Any) -> OurSink:
    return JdbcSink.sink(sql, given.pop("type_info", ROW), options(url, **given))


@pytest.mark.parametrize(
    ("sql", "postgresql", "mysql"),
    [
        ("VALUES (?, ?)", "VALUES (%s, %s)", "VALUES (%s, %s)"),
        ("'what? it''s ?' ?", "'what? it''s ?' %s", "'what? it''s ?' %s"),
        ('"a?" ?', '"a?" %s', '"a?" %s'),
        (r"'\' ? ", r"'\' %s ", None),
        (r"E'\'?' ?", r"E'\'?' %s", r"E'\'?' %s"),
        (r"'\'?' ?", None, r"'\'?' %s"),
        ("date'2020?' ?", "date'2020?' %s", "date'2020?' %s"),
        ("-- a ?\n?", "-- a ?\n%s", "-- a ?\n%s"),
        ("1--?", "1--?", "1--%s"),
        ("# a ?\n?", "# a %s\n%s", "# a ?\n%s"),
        ("/* ? */ ?", "/* ? */ %s", "/* ? */ %s"),
        ("/* /* ? */ ? */ ?", "/* /* ? */ ? */ %s", "/* /* ? */ %s */ %s"),
        ("$$ ? $$ $a$ ? $$ $a$ ?", "$$ ? $$ $a$ ? $$ $a$ %s", None),
        ("tags ?? ? AND a ??| ?", "tags ? %s AND a ?| %s", None),
        ("`a?` ?", None, "`a?` %s"),
        ("n % 2 = ? AND m LIKE '%s?'", "n %% 2 = %s AND m LIKE '%%s?'", "n %% 2 = %s AND m LIKE '%%s?'"),
        ("a$b$ = ? AND c$b$ = ?", "a$b$ = %s AND c$b$ = %s", "a$b$ = %s AND c$b$ = %s"),
    ],
)
def test_placeholders_are_found_outside_of_texts_names_and_comments(
    sql: str, postgresql: str | None, mysql: str | None
) -> None:
    for expected, is_postgresql in ((postgresql, True), (mysql, False)):
        if expected is not None:
            assert Statement.parsed(sql, postgresql=is_postgresql).formatted() == expected


def test_forms_of_a_statement_for_the_databases_themselves() -> None:
    statement = Statement.parsed("INSERT INTO t VALUES (?, ?, '100%')", postgresql=True)
    assert (statement.placeholders, statement.numbered()) == (2, "INSERT INTO t VALUES ($1, $2, '100%')")
    assert statement.marked() == "INSERT INTO t VALUES (?, ?, '100%')"
    with pytest.raises(ProgramError, match="does not end"):
        Statement.parsed("/* never", postgresql=True)


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        ("jdbc:postgresql://host/db", {"host": "host", "port": "5432", "dbname": "db", "user": "tide"}),
        ("jdbc:postgresql://a:1,b/db", {"host": "a,b", "port": "1,5432"}),
        ("jdbc:postgresql://[::1]:7/db", {"host": "::1", "port": "7"}),
        ("jdbc:postgresql:db", {"host": "localhost", "dbname": "db"}),
        ("jdbc:postgresql://host/", {"dbname": "tide"}),
        (
            "jdbc:postgresql://host/db?ssl=true&currentSchema=shop",
            {"sslmode": "verify-full", "options": "-c search_path=shop"},
        ),
        (
            "jdbc:postgresql://host/db?sslmode=require&ApplicationName=me",
            {"sslmode": "require", "application_name": "me"},
        ),
    ],
)
def test_a_url_of_postgresql_names_host_database_and_settings(url: str, expected: dict[str, str]) -> None:
    database = sink(url).database
    assert isinstance(database, PostgreSqlDatabase)
    found = dict(database.settings)
    assert {key: found.get(key) for key in expected} == expected
    assert database.password == SECRET


@pytest.mark.parametrize("kind", ["mysql", "mariadb"])
def test_a_url_of_mariadb_names_host_and_database(kind: str) -> None:
    database = sink(f"jdbc:{kind}://host:3307/db?serverSslCert=/ca.pem&sslMode=verify-ca").database
    assert isinstance(database, MySqlDatabase)
    assert (database.host, database.port, database.database, database.user) == ("host", 3307, "db", "tide")
    assert (database.password, database.tls_ca) == (SECRET, "/ca.pem")


def test_user_and_password_may_be_in_the_url() -> None:
    for kind in ("postgresql", "mysql"):
        made = sink(f"jdbc:{kind}://host/db?user=me&password={SECRET}", user=None, password=None).database
        assert made.password == SECRET and " as me" in made.where  # type: ignore[attr-defined]


def test_parameters_without_a_counterpart_are_ignored_with_a_notice(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        sink("jdbc:mysql://host/db?useSSL=false&serverTimezone=UTC&rewriteBatchedStatements=true")
        sink("jdbc:postgresql://host/db?reWriteBatchedInserts=true")
    assert "are ignored: rewriteBatchedStatements, serverTimezone" in caplog.text
    assert "are ignored: reWriteBatchedInserts" in caplog.text


def test_unsupported_urls_statements_and_types_are_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"PostgreSQL, MariaDB or MySQL(.|\n)*jdbc:oracle:\.\.\."):
        sink("jdbc:oracle:thin:@host:1521/db")
    with pytest.raises(ConfigurationError, match="names one host and a database"):
        sink("jdbc:mysql://a,b/db")
    with pytest.raises(ConfigurationError, match="names one host and a database"):
        sink("jdbc:mysql://host/")
    with pytest.raises(ConfigurationError, match="needs the certificate"):
        sink("jdbc:mysql://host/db?useSSL=true")
    with pytest.raises(ProgramError, match="3 placeholders and 2 fields"):
        sink(sql="INSERT INTO t VALUES (?, ?, ?)")
    with pytest.raises(ProgramError, match=r"field 1(.|\n)*MapTypeInfo"):
        sink(type_info=Types.ROW([Types.INT(), Types.MAP(Types.STRING(), Types.INT())]))
    with pytest.raises(ProgramError, match="field 0"):
        sink("jdbc:mysql://host/db", type_info=Types.ROW([Types.BASIC_ARRAY(Types.INT()), Types.INT()]))
    with pytest.raises(ArgumentTypeError, match="a row type"):
        sink(type_info=Types.INT())
    with pytest.raises(ProgramError, match=r"without with_url"):
        JdbcConnectionOptions.JdbcConnectionOptionsBuilder().build()
    with pytest.raises(ConfigurationError, match="with_max_retries takes a whole number from 0"):
        JdbcExecutionOptions.builder().with_max_retries(-1)


def test_options_have_flinks_defaults_and_show_no_password() -> None:
    found = JdbcExecutionOptions.defaults()
    assert (found.get_batch_size(), found.get_batch_interval_ms(), found.get_max_retries()) == (5000, 0, 3)
    given = options("jdbc:postgresql://host/db")
    assert given.get_db_url() == "jdbc:postgresql://host/db"
    assert given.get_driver_name() == "org.postgresql.Driver"
    assert (given.get_user_name(), given.get_password()) == ("tide", SECRET)
    made = sink(f"jdbc:postgresql://host/db?password={SECRET}")
    assert SECRET not in f"{given!r} {options(f'jdbc:mysql://host/db?password={SECRET}')!r} {made.database!r}"
    assert made.guarantee is SinkGuarantee.NONE and pickle.loads(pickle.dumps(made)).statement == made.statement


def test_a_record_that_is_not_of_the_type_is_refused_and_named() -> None:
    context = WriterContext("job", "sink", 0, 1, 0, None, "a", 0, "staging")
    writer = sink().create_writer(context, [])
    with pytest.raises(RowError, match=r"2 fields(.|\n)*\(1, 'a', 'b'\)"):
        writer.write_batch([(1, "a", "b")], None)
    with pytest.raises(ArgumentTypeError, match=r"row \('one', 'a'\)"):
        writer.write_batch([(1, "a"), ("one", "a")], None)

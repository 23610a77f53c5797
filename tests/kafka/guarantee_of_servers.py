"""Sources and sinks that need a server, for the matrix of guarantees; as a program: the table of docs/guarantees.md, all of it.

python -m tests.kafka.guarantee_of_servers
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.kafka.kafka_tools import Broker, Topics
from tests.servers import databases
from tests.servers.redis_servers import client_of, redis_server, url_of
from tests.servers.server import Server
from tests.servers.sql_cases import Target
from tests.unit.connectors.guarantee_matrix import (
    COUNT,
    KEYS,
    ROUNDS,
    SINKS,
    SOURCES,
    SinkKind,
    SourceKind,
    cell,
    check,
    observe,
    of_page,
    table,
)
from tidegate.common import SimpleStringSchema, Types
from tidegate.common.types import Row
from tidegate.connectors.jdbc.options import JdbcConnectionOptions
from tidegate.connectors.jdbc.sink import JdbcSink
from tidegate.connectors.kafka.dev_broker import free_port
from tidegate.connectors.kafka.offsets import KafkaOffsetsInitializer
from tidegate.connectors.kafka.serialization import KafkaRecordSerializationSchema
from tidegate.connectors.kafka.sink import KafkaSink
from tidegate.connectors.kafka.source import KafkaSource
from tidegate.connectors.redis.sink import RedisSink
from tidegate.connectors.sql.table import Table
from tidegate.operators.contracts.sink import DeliveryGuarantee, Sink
from tidegate.operators.contracts.source import Source

__all__ = ["SINKS", "SOURCES", "SinkKind", "SourceKind", "cell", "check", "observe", "of_page"]


@dataclass
class Places:
    """What a run writes to has a name of its own, made when it is first asked for."""

    make: Callable[[], str]

    def __post_init__(self) -> None:
        self._made: dict[Path, str] = {}

    def __call__(self, directory: Path) -> str:
        if directory not in self._made:
            self._made[directory] = self.make()
        return self._made[directory]


# -- Kafka ---------------------------------------------------------------------------------------------------------------


def kafka_source(topics: Topics) -> SourceKind:
    filled = topics.new(1)
    topics.write(filled, list(range(COUNT)), partition=0)

    def source(directory: Path, undo: ExitStack) -> Source:
        return (
            KafkaSource.builder()
            .set_bootstrap_servers(topics.servers)
            .set_topics(filled)
            .set_value_only_deserializer(SimpleStringSchema())
            .set_starting_offsets(KafkaOffsetsInitializer.earliest())
            .set_bounded(KafkaOffsetsInitializer.latest())
            .build()
        )

    return source


class _Text(SimpleStringSchema):
    def serialize(self, value: Any) -> bytes:
        return str(value).encode()


def kafka_sinks(topics: Topics) -> Iterator[tuple[str, SinkKind]]:
    place = Places(lambda: topics.new(1))

    def sink(delivery: DeliveryGuarantee) -> Callable[[Path], Sink]:
        def make(directory: Path) -> Sink:
            topic = place(directory)
            schema = KafkaRecordSerializationSchema.builder().set_topic(topic)
            builder = KafkaSink.builder().set_bootstrap_servers(topics.servers).set_delivery_guarantee(delivery)
            serializer = schema.set_value_serialization_schema(_Text()).build()
            return builder.set_record_serializer(serializer).set_transactional_id_prefix(topic).build()

        return make

    def read(directory: Path) -> list[int]:
        return [int(value) for value in topics.read(place(directory))]

    yield "Kafka, EXACTLY_ONCE", SinkKind(sink(DeliveryGuarantee.EXACTLY_ONCE), read)
    yield "Kafka, AT_LEAST_ONCE", SinkKind(sink(DeliveryGuarantee.AT_LEAST_ONCE), read)
    yield (
        "Kafka, EXACTLY_ONCE, mode AT_LEAST_ONCE",
        SinkKind(sink(DeliveryGuarantee.EXACTLY_ONCE), read, settings=ROUNDS),
    )


# -- databases -----------------------------------------------------------------------------------------------------------


def sql_sinks(name: str, target: Target) -> Iterator[tuple[str, SinkKind]]:
    plain = Places(lambda: target.new_table("id bigint"))
    unique = Places(lambda: target.new_table("id bigint PRIMARY KEY"))
    newest = Places(lambda: target.new_table("k bigint PRIMARY KEY, id bigint"))

    def rows(directory: Path, delivery: DeliveryGuarantee) -> Sink:
        return target.sink(Table(plain(directory), ["id"]), delivery=delivery)

    def upserts(directory: Path) -> Sink:
        """Two tables by one sink: every number, and the newest of a key."""
        every, last = unique(directory), newest(directory)
        return target.sink(
            Table(every, ["id"], ["id"]),
            Table(last, ["k", "id"], ["k"]),
            to_rows=lambda n: [(every, (n,)), (last, (n % KEYS, n))],
            delivery=DeliveryGuarantee.AT_LEAST_ONCE,
        )

    def read(place: Places) -> Callable[[Path], list[int]]:
        return lambda directory: [n for (n,) in target.ask(f"SELECT id FROM {place(directory)}")]

    def latest(directory: Path) -> dict[Any, int]:
        return dict(target.ask(f"SELECT k, id FROM {newest(directory)}"))  # type: ignore[arg-type]

    exactly, at_least = DeliveryGuarantee.EXACTLY_ONCE, DeliveryGuarantee.AT_LEAST_ONCE
    yield f"{name}, EXACTLY_ONCE", SinkKind(lambda d: rows(d, exactly), read(plain))
    yield f"{name}, AT_LEAST_ONCE, no key", SinkKind(lambda d: rows(d, at_least), read(plain))
    yield f"{name}, AT_LEAST_ONCE, keys", SinkKind(upserts, read(unique), upserts=True, latest=latest)
    yield f"{name}, JdbcSink", SinkKind(lambda d: jdbc_sink(target, plain(d)), read(plain))


def jdbc_sink(target: Target, table: str) -> Sink:
    kind, database = ("postgresql", "postgres") if target.is_postgresql else ("mariadb", "tests")
    options = JdbcConnectionOptions.JdbcConnectionOptionsBuilder()
    options.with_url(f"jdbc:{kind}://127.0.0.1:{target.server.port}/{database}")
    options.with_user_name("tide").with_password(databases.PASSWORD)

    class OfNumbers(JdbcSink):
        def create_writer(self, context: Any, state: list[Any]) -> Any:
            writer = super().create_writer(context, state)
            written = writer.write_batch
            writer.write_batch = lambda values, timestamps: written([(int(n),) for n in values], timestamps)  # type: ignore[method-assign]
            return writer

    made = JdbcSink.sink(f"INSERT INTO {table} VALUES (?)", Types.ROW([Types.LONG()]), options.build())
    return OfNumbers(**vars(made))


# -- Redis ---------------------------------------------------------------------------------------------------------------


def redis_sinks(server: Server) -> Iterator[tuple[str, SinkKind]]:
    client, names = client_of(server), iter(range(1_000_000))
    place = Places(lambda: f"place{next(names)}")

    def counts(directory: Path) -> Sink:
        name = place(directory)
        return RedisSink.increments(url_of(server), lambda n: name, field=lambda n: n)

    def hashes(directory: Path) -> Sink:
        name = place(directory)
        fields = lambda n: {n: n, f"latest{n % KEYS}": n}  # noqa: E731
        return RedisSink.hashes(url_of(server), lambda n: name, fields, at_once=True)

    def read(directory: Path) -> list[int]:
        found = client.hgetall(place(directory)).items()
        return [int(n) for n, times in found for _ in range(int(times))]

    def latest(directory: Path) -> dict[Any, int]:
        found = client.hgetall(place(directory))
        return {k: int(found[b"latest%d" % k]) for k in range(KEYS) if b"latest%d" % k in found}

    def every(directory: Path) -> list[int]:
        return [int(n) for n in client.hgetall(place(directory)) if n.isdigit()]

    yield "Redis, increments", SinkKind(counts, read)
    yield "Redis, at_once", SinkKind(hashes, every, upserts=True, latest=latest)
    yield "Redis, increments, mode AT_LEAST_ONCE", SinkKind(counts, read, settings=ROUNDS)


# -- Delta, Iceberg ------------------------------------------------------------------------------------------------------


class Numbers:
    """In front of a sink of tables: numbers become rows on their way."""

    def create_writer(self, context: Any, state: list[Any]) -> Any:
        writer = super().create_writer(context, state)  # type: ignore[misc]
        written = writer.write_batch
        writer.write_batch = lambda values, times: written([Row(n=n) for n in values], times)
        return writer


def table_sinks() -> Iterator[tuple[str, SinkKind]]:
    """An interpreter that has used deltalake was once seen to abort at its exit: not where other tests run."""
    from tidegate.connectors.tables.delta import DeltaSink
    from tidegate.connectors.tables.iceberg import IcebergSink

    row_type = Types.ROW_NAMED(["n"], [Types.LONG()])

    class Delta(Numbers, DeltaSink):
        pass

    class Iceberg(Numbers, IcebergSink):
        pass

    def delta(directory: Path) -> Sink:
        return Delta(str(directory / "delta"), row_type)

    def iceberg(directory: Path) -> Sink:
        lake = {"type": "sql", "uri": f"sqlite:///{directory}/catalog.db", "warehouse": f"file://{directory}/iceberg"}
        return Iceberg("lake", "a.numbers", row_type, catalog_properties=lake)

    def read_delta(directory: Path) -> list[int]:
        import deltalake

        return deltalake.DeltaTable(str(directory / "delta")).to_pyarrow_table()["n"].to_pylist()  # type: ignore[no-any-return]

    def read_iceberg(directory: Path) -> list[int]:
        return iceberg(directory).table().scan().to_arrow()["n"].to_pylist()  # type: ignore[attr-defined,no-any-return]

    for name, make, read in (("Delta", delta, read_delta), ("Iceberg", iceberg, read_iceberg)):
        yield name, SinkKind(make, read)
        yield f"{name}, mode AT_LEAST_ONCE", SinkKind(make, read, settings=ROUNDS)


# -- all of it -----------------------------------------------------------------------------------------------------------


@contextmanager
def server_sinks(topics: Topics) -> Iterator[dict[str, SinkKind]]:
    with databases.postgresql() as first, databases.mariadb() as second, redis_server() as third:
        yield {
            **dict(kafka_sinks(topics)),
            **dict(sql_sinks("PostgreSQL", Target(first))),
            **dict(sql_sinks("MariaDB", Target(second))),
            **dict(redis_sinks(third)),
        }


def main() -> None:
    with tempfile.TemporaryDirectory() as directory, Broker(Path(directory) / "kafka", free_port()) as broker:
        topics = Topics(broker.bootstrap_servers)
        with server_sinks(topics) as sinks:
            print(table({**SOURCES, "Kafka": kafka_source(topics)}, {**SINKS, **sinks, **dict(table_sinks())}))


if __name__ == "__main__":
    main()

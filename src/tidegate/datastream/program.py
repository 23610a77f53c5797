"""Build a Program from an environment's operators: select them, resolve the mode, and check everything before the start."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

from tidegate.base.errors import ProgramError
from tidegate.base.pickling import cure_of, dumps, why_not
from tidegate.common.configuration import Configuration, effective, notice
from tidegate.common.dependencies import Dependencies
from tidegate.common.options import (
    AUTO_UIDS,
    CHAINING,
    CLASSPATHS,
    JARS,
    JOB_NAME,
    MAX_PARALLELISM,
    PARALLELISM,
    RUNTIME_MODE,
)
from tidegate.datastream.cached_stream import cache_writers, with_caches
from tidegate.graph.plan import build
from tidegate.graph.transformation import Input, OperatorSpec, Partitioning, Program, Role, Ship, Transformation

DEFAULT_JOB_NAME = "Tidegate Streaming Job"


def build_program(
    registry: Mapping[int, Transformation],
    wanted: Iterable[int],
    configuration: Configuration,
    parallelism: int,
    job_name: str | None,
    caches: Mapping[int, str] = MappingProxyType({}),
) -> Program:
    """Build the program of the wanted operators and everything they read from. Raise before anything starts. ``caches``:
    operators whose records are to be cached -> where."""
    transformations = _with_upstream(with_caches(registry, caches), wanted)
    if not transformations:
        raise ProgramError(
            "The job has no operator",
            where="execute",
            found="none since the environment was made or last executed",
            cure="add a source and a sink before calling execute()",
        )
    settings = effective(configuration)
    notice_of_jars([*(settings[JARS.key] or ()), *(settings[CLASSPATHS.key] or ())])
    settings[PARALLELISM.key] = parallelism
    settings[RUNTIME_MODE.key] = resolve_mode(settings[RUNTIME_MODE.key], transformations)
    transformations += cache_writers(transformations, caches, settings[RUNTIME_MODE.key], len(registry) + 1)
    if settings[RUNTIME_MODE.key] == "BATCH":
        transformations = [with_batch_semantics(t) for t in transformations]
    name = job_name or settings[JOB_NAME.key] or DEFAULT_JOB_NAME
    program = Program(name, tuple(transformations), settings, settings[CHAINING.key])
    _check(program)
    return program


def _with_upstream(registry: Mapping[int, Transformation], wanted: Iterable[int]) -> list[Transformation]:
    """Return the wanted operators with all upstream ones. Ids grow along the edges, so in sorted order inputs come first."""
    found: set[int] = set()
    todo = list(wanted)
    while todo:
        operator_id = todo.pop()
        if operator_id not in found:
            found.add(operator_id)
            todo += [i.upstream for i in registry[operator_id].inputs]
    return [registry[operator_id] for operator_id in sorted(found)]


def _check(program: Program) -> None:
    settings = program.configuration
    Dependencies.of(settings)
    build(program, settings[PARALLELISM.key], settings[MAX_PARALLELISM.key], {})  # uids, parallelism, forward
    for transformation in program.transformations:
        if not settings[AUTO_UIDS.key] and not (transformation.uid or transformation.uid_hash):
            raise ProgramError(
                "An operator has no uid, and generated uids are disabled",
                where=f"operator '{transformation.name}'",
                found=f"'{AUTO_UIDS.key}' is false",
                cure='call uid("...") on it',
            )
        _check_picklable(transformation)


def _check_picklable(transformation: Transformation) -> None:
    partitionings = [i.partitioning for i in transformation.inputs if i.partitioning is not None]
    for what, part in [
        ("its function", transformation.spec),
        ("a key selector or partitioner before it", partitionings),
    ]:
        try:
            dumps(part)
        except Exception as error:  # pickling runs user code, which may raise anything
            raise ProgramError(
                "An operator cannot be pickled, so it cannot be sent to the executors",
                where=f"operator '{transformation.name}', {what}",
                found=why_not(part, error),
                cure=cure_of(
                    error,
                    "create connections, locks and similar objects in open(), not in __init__ or outside of the function",
                ),
            ) from error


# -- jars of PyFlink programs: no Java code runs, but most jars hold what is built in ----------------------------------------


_NO_JAVA = "Java code is not run"
_FORMATS = "the {} format is built in (docs/formats.md)"
_COUNTERPARTS = {
    "confluent-registry": f"{_NO_JAVA}, and there is no client of a schema registry; read bytes and decode them in map()",
    "kinesis": f"{_NO_JAVA}, and there is no Kinesis connector",
    "pulsar": f"{_NO_JAVA}, and there is no Pulsar connector",
    "elasticsearch": f"{_NO_JAVA}, and there is no Elasticsearch connector",
    "rabbitmq": f"{_NO_JAVA}, and there is no RabbitMQ connector",
    "cassandra": f"{_NO_JAVA}, and there is no Cassandra connector",
    "kafka": "KafkaSource and KafkaSink are built in (docs/kafka.md)",
    "jdbc": "JDBC sinks write to PostgreSQL and MariaDB without a Java driver (docs/postgresql.md, docs/mariadb.md)",
    "postgresql": "the PostgreSQL connector is built in (docs/postgresql.md)",
    "mysql": "the MariaDB and MySQL connector is built in (docs/mariadb.md)",
    "mariadb": "the MariaDB and MySQL connector is built in (docs/mariadb.md)",
    "parquet": _FORMATS.format("Parquet"),
    "avro": _FORMATS.format("Avro"),
    "json": _FORMATS.format("JSON"),
    "csv": _FORMATS.format("CSV"),
    "orc": _FORMATS.format("ORC"),
    "iceberg": "IcebergSink is built in (docs/iceberg.md)",
    "delta": "DeltaSink is built in (docs/delta.md)",
    "rocksdb": "the state backend rocksdb is built in (docs/state-backends.md)",
    "s3-fs": "paths with s3:// are built in",
    "hadoop": "paths with hdfs:// are built in",
    "connector-files": "FileSource and FileSink are built in (docs/files.md)",
}
"""Part of a file's name -> its replacement. The first match counts."""


def notice_of_jars(jars: Iterable[str]) -> None:
    """Log one notice for each jar in the life of the process."""
    for jar in jars:
        notice(jar, counterpart(jar))


def counterpart(jar: str) -> str:
    """Return what replaces a jar."""
    name = jar.rstrip("/").rpartition("/")[2].lower()
    known = next((text for part, text in _COUNTERPARTS.items() if part in name), None)
    return known or f"{_NO_JAVA}; docs/sources-and-sinks.md lists the connectors that are built in"


# -- batch mode: a rolling reduce gives one result per key, when the bounded input has ended ---------------------------------


def resolve_mode(mode: str, transformations: list[Transformation]) -> str:
    """Return STREAMING or BATCH. BATCH with an unbounded source is refused."""
    unbounded = [t.name for t in transformations if not t.spec.is_bounded]
    if mode == "AUTOMATIC":
        return "STREAMING" if unbounded else "BATCH"
    if mode == "BATCH" and unbounded:
        raise ProgramError(
            "BATCH mode needs bounded sources",
            where=f"source '{unbounded[0]}'",
            found="it is unbounded",
            cure="set the runtime mode to STREAMING or AUTOMATIC, or bound the source",
        )
    return mode


def with_batch_semantics(transformation: Transformation) -> Transformation:
    """Return the operator of batch mode. Only a rolling reduce differs: it emits its last result alone."""
    spec = transformation.spec.in_batch_mode()
    if spec is transformation.spec:
        return transformation
    if transformation.pickled_spec is not None:
        added: OperatorSpec = pickle.loads(transformation.pickled_spec)
        spec = added.in_batch_mode()
    return replace(transformation, spec=spec, pickled_spec=None)


# -- the execution plan, in the shape of Flink's JSON ------------------------------------------------------------------------


KEYED = "_stream_key_by_map_operator"
"""PyFlink's name of the operator that adds the key to a record. Here an edge computes the key, and the plan shows a node for it."""


_PREFIXES = {Role.SOURCE: "Source: ", Role.SINK: "Sink: "}


def execution_plan(program: Program) -> str:
    """Return the plan as JSON: nodes with their predecessors and ship strategies, and a node for each partitioning by key."""
    return json.dumps({"nodes": list(_Plan(program).nodes())}, indent=2)


class _Plan:
    def __init__(self, program: Program) -> None:
        self._program = program
        default = program.configuration[PARALLELISM.key]
        self._degree = {t.id: t.parallelism or default for t in program.transformations}
        self._keyed: dict[tuple[int, str | None, int], int] = {}
        """Stream and partitioning -> the id of the key's node: several operators may read one keyed stream."""

    def nodes(self) -> Iterator[dict[str, Any]]:
        for t in self._program.transformations:
            predecessors = []
            for i in t.inputs:
                if i.partitioning is None or i.partitioning.ship is not Ship.HASH:
                    predecessors.append(_edge(i.upstream, self._ship(i, t.id)))
                    continue
                known = (i.upstream, i.tag, id(i.partitioning))
                if known not in self._keyed:
                    self._keyed[known] = max(self._degree) + len(self._keyed) + 1
                    above = [_edge(i.upstream, Ship.FORWARD.value)]
                    yield _node(self._keyed[known], KEYED, KEYED, "Operator", self._degree[i.upstream], above)
                predecessors.append(_edge(self._keyed[known], Ship.HASH.value))
            contents, role = t.description or shown_name(t), t.spec.role.value
            yield _node(t.id, shown_name(t), contents, role, self._degree[t.id], predecessors)

    def _ship(self, i: Input, reader: int) -> str:
        same = Partitioning(Ship.FORWARD if self._degree[i.upstream] == self._degree[reader] else Ship.REBALANCE)
        ship: str = (i.partitioning or same).ship.value
        return ship


def shown_name(t: Transformation) -> str:
    """Return ``Source: orders``, ``Sink: totals``."""
    prefix = _PREFIXES.get(t.spec.role, "")
    return t.name if t.name.startswith(prefix) else prefix + t.name


def _edge(upstream: int, ship: str) -> dict[str, Any]:
    return {"id": upstream, "ship_strategy": ship, "side": "second"}


def _node(
    node_id: int, name: str, contents: str, pact: str, parallelism: int, predecessors: list[dict[str, Any]]
) -> dict[str, Any]:
    node = {"id": node_id, "type": name, "pact": pact, "contents": contents, "parallelism": parallelism}
    return {**node, "predecessors": predecessors} if predecessors else node

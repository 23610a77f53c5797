"""Names that programs and snapshots use and that are elsewhere now: of former PyFlinks, of former Tidegates, of missing parts."""

from __future__ import annotations

import logging

log = logging.getLogger("tidegate.configuration")

noticed: set[str] = set()


def former(name: str, instead: str) -> None:
    """Warn that a name of a former PyFlink is deprecated, once in the life of the process."""
    if name not in noticed:
        noticed.add(name)
        log.warning("'%s' is deprecated, PyFlink 2 does not have it: %s", name, instead)


_EVENT_TIME = "no setting is needed; give sources a WatermarkStrategy, and windows say whether they are of event time"
_RETENTION = "use ExternalizedCheckpointRetention"
_BACKEND = "use {} and CheckpointConfig.set_checkpoint_storage"
_MEMORY, _FILES, _ROCKSDB = (
    _BACKEND.format(name) for name in ("HashMapStateBackend", "HashMapStateBackend", "EmbeddedRocksDBStateBackend")
)

FORMER: dict[str, tuple[str, str, str]] = {
    "datastream.TimeCharacteristic": ("datastream.former", "TimeCharacteristic", _EVENT_TIME),
    "datastream.stream_execution_environment.TimeCharacteristic": (
        "datastream.former",
        "TimeCharacteristic",
        _EVENT_TIME,
    ),
    **{
        f"{module}.ExternalizedCheckpointCleanup": (
            "datastream.externalized_checkpoint_retention",
            "ExternalizedCheckpointRetention",
            _RETENTION,
        )
        for module in ("datastream", "datastream.checkpoint_config")
    },
    **{
        f"{module}.{name}": ("datastream.former", name, instead)
        for module in ("datastream", "datastream.state_backend")
        for name, instead in (
            ("FsStateBackend", _FILES),
            ("MemoryStateBackend", _MEMORY),
            ("RocksDBStateBackend", _ROCKSDB),
        )
    },
    **{
        f"common.serialization.{name}": (
            f"datastream.formats.{form}",
            name,
            f"import it from pyflink.datastream.formats.{form}",
        )
        for form in ("json", "csv", "avro")
        for name in (f"{form.title()}RowDeserializationSchema", f"{form.title()}RowSerializationSchema")
    },
}
"""``<module>.<name>`` without the package -> the module that has it, its name there, and what a program should use instead."""
FORMER_MODULES = {"datastream.time_characteristic": "datastream.former"}
"""Modules of former PyFlink versions -> where their names are."""

_MOVES = (
    ("common", "base", "clock errors faults files ids pickling plain_data portable_errors user_code watermarks"),
    ("common", "metrics", "metrics:metricbase"),
    ("datastream", "datastream", "join_functions:window_functions"),
    ("checkpoint", "snapshots", "reader writer difference columns:reader"),
    ("state", "snapshots", "entries"),
    ("common", "table", "data_types:types"),
    (
        "connectors",
        "connectors.files",
        "bucket_assigners bulk_parts:parts file_committer:committer file_compaction:compaction "
        "file_enumerator:enumerator file_format file_parts:parts file_sink:sink file_source:source "
        "file_writer:writer kept_files:committer paths rolling streaming_file_sink:sink success_markers "
        "text_lines",
    ),
    ("connectors", "connectors.sockets", "received_lines socket_receiver:source socket_source:source"),
    ("connectors", "connectors.tables", "delta_sink:delta iceberg_sink:iceberg table_sink:sink"),
    (
        "connectors",
        "connectors.frames",
        "dataframe_source:sources for_each_checkpoint spark_rows:sources stream_reader_source:sources",
    ),
    ("connectors", "connectors.redis", "redis_server:server redis_sink:sink"),
    (
        "connectors",
        "connectors.values",
        "collection:ranges number_sequence:ranges data_generator ranges hybrid_source collect:sinks cache "
        "print:sinks discard:sinks once:sinks",
    ),
    (
        "connectors",
        "connectors.functions",
        "function_sink two_phase_commit write_ahead intents:two_phase_commit upsert:function_sink former",
    ),
    ("connectors", "connectors", "numbered:staged_file"),
    (
        "operators",
        "operators.contracts",
        "source sink contexts functions generators watermarks metrics time_domain:contexts column_batch:batch",
    ),
    ("base", "base", "ids:hashing watermarks:clock plain_data:pickling counts:plain_text held_dir:private_dirs"),
    ("graph", "graph", "event_time:plan output_tag:transformation"),
    ("operators.flow", "operators.flow", "sorted_feed:feeds"),
    (
        "operators.kinds",
        "operators.kinds",
        "async_calls:async_io broadcast_contexts:function_operator timestamps:source",
    ),
    ("operators.windows", "operators.windows", "emission:contexts adding:slices time_assigners:assigner"),
    ("state", "state", "interfaces:descriptors key_types:keys map_state:keyed compaction:materialize"),
    ("connectors", "operators.contracts", "delivery:sink"),
    ("connectors", "connectors", "directory_mark:staged_file"),
    (
        "connectors.files",
        "connectors.files",
        "enumerator:source text_lines:file_format paths:file_format compaction:parts success_markers:parts "
        "rolling:bucket_assigners",
    ),
    (
        "connectors.formats",
        "connectors.formats",
        "avro_columns:arrow_types csv_rows:csv_schemas avro_files:avro_schemas",
    ),
    ("connectors.formats", "base", "libraries:imports"),
    ("connectors.functions", "connectors.functions", "former:function_sink"),
    ("connectors.jdbc", "connectors.jdbc", "batches:statement"),
    ("connectors.kafka", "connectors.kafka", "broker_checks:cluster deserialization:serialization enumerator:source"),
    ("connectors.mysql", "connectors.mysql", "encoding:session failures:session database:sink"),
    ("connectors.postgresql", "connectors.postgresql", "encoding:session failures:session database:sink"),
    ("connectors.sql", "connectors.sql", "failures:database names:database encoding:table committer:sink frames:table"),
    ("connectors.redis", "connectors.redis", "server:sink"),
    (
        "datastream",
        "datastream",
        "selectors:typed_functions interval_join:joined_streams interruption:executor "
        "broadcast_stream:connected_streams",
    ),
    ("operators.contracts", "operators.contracts", "contexts:functions settings:operator"),
    ("testing", "testing", "mini_cluster:executor"),
)
"""Package, its successor, and the modules that moved there (``old:new`` where the last name changed too)."""

MOVED: dict[str, str] = {
    f"tidegate.{old}.{name.partition(':')[0]}": f"tidegate.{new}.{name.rpartition(':')[2]}"
    for old, new, names in _MOVES
    for name in names.split()
}
"""Former module -> module. Snapshots contain pickles that name classes by a former module, and programs may import from it."""

_SOURCE = "a SourceFunction wraps Java code, which is not run; write a Source (docs/sources-and-sinks.md)"
_OWN = (
    "there is no connector for {}; read it with a Python DataSource (from_data_source, docs/spark.md), write to it with a sink of "
    "your own (docs/own-sinks.md)"
)
ELSEWHERE = {
    "table": (
        "write the step with the DataStream API (map, key_by, window, process; KafkaSource, FileSource, FileSink), or use tables "
        "and SQL of Spark: env.from_dataframe(...) and stream.for_each_checkpoint(...), see docs/spark.md. Of pyflink.table only "
        "the types of columns are here: DataTypes, RowType"
    ),
    "ml": "Flink ML is not part of Tidegate; Spark has MLlib",
    "dataset": "the DataSet API was removed from Flink; use the DataStream API with RuntimeExecutionMode.BATCH",
    "connector": "PyFlink has no such package; connectors are in pyflink.datastream.connectors",
    "testing": "these are the tools of PyFlink's own tests; Tidegate's are in tidegate.testing",
    "java_gateway": "there is no Java gateway: nothing of a program runs in a JVM",
    "util": "these are PyFlink's own tools for Java objects, and there are none",
    "fn_execution": "this is the inside of PyFlink's workers; Spark's workers run the functions here",
    "datastream.SourceFunction": _SOURCE,
    "datastream.functions.SourceFunction": _SOURCE,
    "datastream.connectors.dynamic_kafka": "use one KafkaSource for each cluster, and union the streams",
    **{
        f"datastream.connectors.{module}": _OWN.format(system)
        for module, system in (
            ("cassandra", "Cassandra"),
            ("elasticsearch", "Elasticsearch"),
            ("kinesis", "Kinesis"),
            ("pulsar", "Pulsar"),
            ("rabbitmq", "RabbitMQ"),
        )
    },
}
"""Module or name of PyFlink -> what to use instead. A longer entry wins over a shorter one."""

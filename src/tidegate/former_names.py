"""Names of former versions, of PyFlink and of Tidegate, that programs and snapshots still use, and what answers for each today.

``<module>.<name>``, without the package -> the module that has it, its name there, and what a program should use instead.
"""

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

_MOVES = (
    (
        "common",
        "base",
        "clock errors faults files ids pickling plain_data portable_errors user_code watermarks",
    ),
    ("common", "metrics", "metrics:metricbase"),
    ("common", "table", "data_types:types"),
    (
        "connectors",
        "connectors.files",
        "bucket_assigners bulk_parts file_committer:committer file_compaction:compaction "
        "file_enumerator:enumerator file_format file_parts:parts file_sink:sink file_source:source "
        "file_writer:writer kept_files paths rolling streaming_file_sink success_markers text_lines",
    ),
    ("connectors", "connectors.sockets", "received_lines socket_receiver:receiver socket_source:source"),
    ("connectors", "connectors.tables", "delta_sink:delta iceberg_sink:iceberg table_sink:sink"),
    ("connectors", "connectors.frames", "dataframe_source for_each_checkpoint spark_rows stream_reader_source"),
    ("connectors", "connectors.redis", "redis_server:server redis_sink:sink"),
    (
        "connectors",
        "connectors.values",
        "collection number_sequence data_generator ranges hybrid_source collect cache print discard",
    ),
    (
        "connectors",
        "connectors.functions",
        "function_sink two_phase_commit write_ahead intents upsert once numbered former",
    ),
    (
        "operators",
        "operators.contracts",
        "source sink contexts functions generators watermarks metrics time_domain:contexts column_batch:batch",
    ),
)
"""Package, its successor, and the modules that moved there (``old:new`` where the last name changed too)."""

MOVED: dict[str, str] = {
    f"tidegate.{old}.{name.partition(':')[0]}": f"tidegate.{new}.{name.rpartition(':')[2]}"
    for old, new, names in _MOVES
    for name in names.split()
}
"""Former module -> module. Snapshots contain pickles that name classes by a former module, and programs may import from it."""

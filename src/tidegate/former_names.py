"""Names of former PyFlink versions that programs still import, and what answers for each today.

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

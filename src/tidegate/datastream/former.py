"""Names of former PyFlink versions that programs still use, implemented with today's names. Each use gives one notice."""

from __future__ import annotations

import re
from enum import Enum
from typing import TYPE_CHECKING, Any

from tidegate.base.arguments import expect_text, wrong
from tidegate.base.former_names import former
from tidegate.common.configuration import Configuration
from tidegate.common.options import (
    AUTO_WATERMARK_INTERVAL,
    CHECKPOINT_DIR,
    CHECKPOINT_STORAGE,
    MAX_STATE_SIZE,
    SAVEPOINT_DIR,
    Option,
)
from tidegate.common.typeinfo import TypeInformation, Types
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.connectors.files.file_format import StreamFormat
from tidegate.connectors.files.source import FileSource
from tidegate.datastream.state_backend import EmbeddedRocksDBStateBackend, HashMapStateBackend, StateBackend

if TYPE_CHECKING:
    from tidegate.datastream.stream import DataStream
    from tidegate.operators.contracts.source import Source

__all__ = ["FsStateBackend", "MemoryStateBackend", "RocksDBStateBackend", "TimeCharacteristic"]


class TimeCharacteristic(Enum):
    """The time that a program uses. Today windows and timers define it themselves."""

    ProcessingTime = 0
    IngestionTime = 1
    EventTime = 2


class FsStateBackend(HashMapStateBackend):
    """State as with ``HashMapStateBackend``, checkpoints in a directory. The other parameters have no meaning here."""

    def __init__(
        self,
        checkpoint_directory_uri: str,
        default_savepoint_directory_uri: str | None = None,
        file_state_size_threshold: int | None = None,
        write_buffer_size: int | None = None,
        using_asynchronous_snapshots: bool | None = None,
    ) -> None:
        self._storage = _storage("filesystem", checkpoint_directory_uri, default_savepoint_directory_uri)

    def settings(self) -> dict[Option, Any]:
        return {**super().settings(), **self._storage}


class MemoryStateBackend(HashMapStateBackend):
    """State as with ``HashMapStateBackend``, checkpoints in the driver's memory, or in a directory if one is given."""

    def __init__(
        self,
        checkpoint_path: str | None = None,
        savepoint_path: str | None = None,
        max_state_size: int | None = None,
        using_asynchronous_snapshots: bool | None = None,
    ) -> None:
        self._storage = _storage("jobmanager", checkpoint_path, savepoint_path, max_state_size)

    def settings(self) -> dict[Option, Any]:
        return {**super().settings(), **self._storage}


class RocksDBStateBackend(EmbeddedRocksDBStateBackend):
    """State as with ``EmbeddedRocksDBStateBackend``, checkpoints in a directory or where ``checkpoint_stream_backend`` says."""

    def __init__(
        self,
        checkpoint_data_uri: str | None = None,
        enable_incremental_checkpointing: bool | None = None,
        checkpoint_stream_backend: StateBackend | None = None,
    ) -> None:
        super().__init__(enable_incremental_checkpointing)
        if checkpoint_stream_backend is not None:
            self._storage = checkpoint_stream_backend.settings()
        else:
            self._storage = {} if checkpoint_data_uri is None else _storage("filesystem", checkpoint_data_uri)

    def settings(self) -> dict[Option, Any]:
        return {**self._storage, **super().settings()}


def _storage(
    kind: str, path: str | None, savepoints: str | None = None, most_state: int | None = None
) -> dict[Option, Any]:
    """Return the options of checkpoint storage, which state backends of Flink 1.12 and earlier include."""
    chosen = {CHECKPOINT_STORAGE: kind, CHECKPOINT_DIR: path, SAVEPOINT_DIR: savepoints, MAX_STATE_SIZE: most_state}
    return {option: value for option, value in chosen.items() if value is not None}


class FormerEnvironment:
    """Methods of PyFlink 1.x's environment."""

    _configuration: Configuration
    _time_characteristic = TimeCharacteristic.EventTime

    if TYPE_CHECKING:

        def from_source(
            self,
            source: Source,
            watermark_strategy: WatermarkStrategy,
            source_name: str,
            type_info: TypeInformation | None = None,
        ) -> DataStream: ...

        def socket_text_stream(
            self, hostname: str, port: int, delimiter: str = "\n", max_retry: int = 0
        ) -> DataStream: ...

    def set_stream_time_characteristic(self, characteristic: TimeCharacteristic) -> None:
        """Set the time characteristic. As in Flink 1.12 and later it only sets how often watermark generators emit without
        records: never with ProcessingTime, else every 200 ms. Windows and timers define their time themselves."""
        if not isinstance(characteristic, TimeCharacteristic):
            cure = "TimeCharacteristic.EventTime"
            raise wrong("set_stream_time_characteristic", "a TimeCharacteristic", characteristic, cure)
        former(
            "StreamExecutionEnvironment.set_stream_time_characteristic",
            "leave it out; give sources a WatermarkStrategy, and windows say whether they are of event time",
        )
        self._time_characteristic = characteristic
        asked = 0 if characteristic is TimeCharacteristic.ProcessingTime else AUTO_WATERMARK_INTERVAL.default
        self._configuration.write(AUTO_WATERMARK_INTERVAL, asked)

    def get_stream_time_characteristic(self) -> TimeCharacteristic:
        """Return the time characteristic; EventTime unless set."""
        return self._time_characteristic

    def read_text_file(self, file_path: str, charset_name: str = "UTF-8") -> DataStream:
        """Read the lines of a file, or of all files below a directory, as texts: a bounded stream."""
        former(
            "StreamExecutionEnvironment.read_text_file",
            "use from_source(FileSource.for_record_stream_format(StreamFormat.text_line_format(), path).build(), ...)",
        )
        path = expect_text("read_text_file", file_path, "the path of a file or directory")
        lines = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset_name), path).build()
        return self.from_source(lines, WatermarkStrategy.no_watermarks(), "Text File", Types.STRING())

    @property
    def _j_stream_execution_environment(self) -> JavaEnvironment:
        """PyFlink's private Java object, which programs use for a few things."""
        return JavaEnvironment(self)


class JavaEnvironment:
    """Replaces PyFlink's Java object of the environment, for the methods that programs use. Other methods are refused."""

    def __init__(self, environment: FormerEnvironment) -> None:
        self._environment = environment

    def getConfiguration(self) -> JavaConfiguration:
        """Return the environment's configuration itself: changes take effect."""
        return JavaConfiguration(j_configuration=self._environment._configuration)

    def socketTextStream(self, hostname: str, port: int, delimiter: str = "\n", max_retry: int = 0) -> DataStream:
        """Return the argument for ``DataStream(...)``."""
        former("_j_stream_execution_environment.socketTextStream", "use StreamExecutionEnvironment.socket_text_stream")
        return self._environment.socket_text_stream(hostname, port, delimiter, max_retry)

    def __getattr__(self, name: str) -> Any:
        raise _not_java("_j_stream_execution_environment", name, self)


class JavaConfiguration(Configuration):
    """A configuration with the names of Java's methods too: ``setString`` is ``set_string``."""

    def __getattr__(self, name: str) -> Any:
        ours = re.sub("[A-Z]", lambda capital: "_" + capital[0].lower(), name)
        if ours == name or not hasattr(Configuration, ours):
            raise _not_java("Configuration", name, self)
        return getattr(self, ours)


def _not_java(holder: str, name: str, found: object) -> AttributeError:
    text = f"{holder}.{name} is Java's, and there are no Java objects in a Python program. Use the methods of PyFlink's API"
    return AttributeError(text, name=name, obj=found)

"""StreamExecutionEnvironment: where a program is built, configured and started."""

from __future__ import annotations

import dataclasses
import os
import warnings
from collections.abc import Callable, Iterable
from html import escape
from typing import Any, overload

from tidegate.base.arguments import expect_int, expect_text, wrong
from tidegate.base.errors import ProgramError, TidegateError
from tidegate.base.generics import TypeVar
from tidegate.base.pickling import pickled
from tidegate.base.user_code import calling_line
from tidegate.common import global_configuration
from tidegate.common.configuration import Configuration
from tidegate.common.conversion import collection_converter, takes_anything
from tidegate.common.execution_config import ExecutionConfig
from tidegate.common.job_client import JobClient, RunningJob
from tidegate.common.job_execution_result import JobExecutionResult
from tidegate.common.object_types import Declared, type_of
from tidegate.common.options import (
    BUFFER_TIMEOUT,
    BUFFER_TIMEOUT_ENABLED,
    CHAINING,
    CHAINING_MIXED_MAX,
    CHANGELOG,
    MAX_PARALLELISM,
    PARALLELISM,
    RUNTIME_MODE,
    SAVEPOINT_DIR,
    WEB_ENABLED,
)
from tidegate.common.restart_strategy import RestartStrategyConfiguration
from tidegate.common.typeinfo import BasicTypeInfo, TupleTypeInfo, TypeInformation, Types
from tidegate.common.types import Row
from tidegate.common.watermark_strategy import WatermarkStrategy
from tidegate.connectors.formats.avro_schemas import AvroInputFormat
from tidegate.connectors.frames.sources import DataFrameSource, StreamReaderSource
from tidegate.connectors.functions.function_sink import AddedSource
from tidegate.connectors.sockets.source import SocketSource
from tidegate.connectors.values.cache import drop
from tidegate.connectors.values.ranges import CollectionSource, records_of
from tidegate.datastream.checkpoint_config import CheckpointConfig
from tidegate.datastream.checkpointing_mode import CheckpointingMode
from tidegate.datastream.execution_mode import RuntimeExecutionMode
from tidegate.datastream.executor import Interruption, started
from tidegate.datastream.former import FormerEnvironment
from tidegate.datastream.job_dependencies import JobDependencies
from tidegate.datastream.program import build_program, execution_plan
from tidegate.datastream.slot_sharing_group import SlotSharingGroup
from tidegate.datastream.state_backend import StateBackend
from tidegate.datastream.stream import DataStream, expect_strategy
from tidegate.graph.drawing import of_graph
from tidegate.graph.plan import build
from tidegate.graph.transformation import Input, OperatorSpec, Program, Role, Transformation
from tidegate.operators.contracts.source import Source
from tidegate.operators.contracts.specs import SourceSpec

__all__ = ["StreamExecutionEnvironment"]

DEFAULT_CHECKPOINT_INTERVAL = 500
T = TypeVar("T", default=Any)
V = TypeVar("V", default=Any)


class StreamExecutionEnvironment(JobDependencies, FormerEnvironment):
    """Holds the operators of a program as frozen data, and its configuration. Nothing runs before ``execute``.

    Use ``get_execution_environment``: it reads the configuration file and the command line. The program's settings override both.
    """

    def __init__(self, configuration: Configuration | None = None) -> None:
        self._configuration = Configuration()
        self._registry: dict[int, Transformation] = {}
        self._pending: list[int] = []
        self._caches: dict[int, str] = {}
        """Operators whose records are to be cached -> where."""
        self._slot_sharing_groups: dict[str, SlotSharingGroup] = {}
        self._default_local_parallelism = os.cpu_count() or 1
        if configuration is not None:
            self.configure(configuration)

    @staticmethod
    def get_execution_environment(configuration: Configuration | None = None) -> StreamExecutionEnvironment:
        """Make an environment. Precedence: defaults < configuration file < ``-D`` < the given configuration < the program's
        calls."""
        environment = StreamExecutionEnvironment(global_configuration.load())
        if configuration is not None:
            environment.configure(configuration)
        return environment

    @staticmethod
    def create_local_environment_with_web_ui(
        configuration: Configuration | None = None,
    ) -> StreamExecutionEnvironment:
        """Make an environment whose jobs are shown on a page while they run. The driver prints its address. ``rest.port``,
        ``rest.bind-port`` and ``rest.bind-address`` say where it listens. As Flink's ``createLocalEnvironmentWithWebUI``."""
        environment = StreamExecutionEnvironment.get_execution_environment(configuration)
        return environment.configure(Configuration.from_dict({WEB_ENABLED.key: True}))

    # -- configuration

    def configure(self, configuration: Configuration) -> StreamExecutionEnvironment:
        """Set all keys of the configuration; others stay as they are. Unknown keys and wrong values are refused."""
        if not isinstance(configuration, Configuration):
            raise wrong("configure", "a Configuration", configuration, 'Configuration.from_dict({"key": "value"})')
        self._configuration.overlay(configuration)
        return self

    def get_config(self) -> ExecutionConfig:
        """Return the settings of the program: a view of the configuration."""
        return ExecutionConfig(self._configuration)

    def get_checkpoint_config(self) -> CheckpointConfig:
        """Return the settings of checkpoints: a view of the configuration."""
        return CheckpointConfig(self._configuration)

    def set_parallelism(self, parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of subtasks of operators that are added later and set none themselves."""
        self.get_config().set_parallelism(parallelism)
        return self

    def get_parallelism(self) -> int:
        """Return the configured parallelism, else the default local parallelism: the number of processors unless set."""
        return int(self._configuration.read(PARALLELISM) or self._default_local_parallelism)

    def set_max_parallelism(self, max_parallelism: int) -> StreamExecutionEnvironment:
        """Set the number of key groups, 1 to 32768. State depends on it: it cannot change after the first start."""
        self.get_config().set_max_parallelism(max_parallelism)
        return self

    def get_max_parallelism(self) -> int:
        """Return the number of key groups; -1 if not set."""
        return self.get_config().get_max_parallelism()

    def get_default_local_parallelism(self) -> int:
        """Return the number of processors unless set."""
        return self._default_local_parallelism

    def set_default_local_parallelism(self, parallelism: int) -> None:
        """Set the result of ``get_parallelism`` without configuration."""
        value = expect_int("set_default_local_parallelism", parallelism, "at least 1")
        self._default_local_parallelism = PARALLELISM.parse(value)

    def register_slot_sharing_group(self, slot_sharing_group: SlotSharingGroup) -> StreamExecutionEnvironment:
        """Accept the group without effect: Spark places tasks."""
        self._slot_sharing_groups[slot_sharing_group.get_name()] = slot_sharing_group
        return self

    def set_runtime_mode(self, execution_mode: RuntimeExecutionMode) -> StreamExecutionEnvironment:
        """Set STREAMING, BATCH, or AUTOMATIC: batch if all sources are bounded."""
        if not isinstance(execution_mode, RuntimeExecutionMode):
            raise wrong("set_runtime_mode", "a RuntimeExecutionMode", execution_mode, "RuntimeExecutionMode.STREAMING")
        self._configuration.write(RUNTIME_MODE, execution_mode.name)
        return self

    def set_buffer_timeout(self, timeout_millis: int) -> StreamExecutionEnvironment:
        """Set the longest time a record waits for a round; 0: rounds start at once, -1: rounds are as large as useful."""
        value = expect_int("set_buffer_timeout", timeout_millis, "milliseconds, or -1")
        if value < -1:
            raise ProgramError("set_buffer_timeout takes at least -1", found=str(value), cure="milliseconds, or -1")
        self._configuration.write(BUFFER_TIMEOUT_ENABLED, value >= 0)
        if value >= 0:
            self._configuration.write(BUFFER_TIMEOUT, value)
        return self

    def get_buffer_timeout(self) -> int:
        """As set by ``set_buffer_timeout``; -1: rounds as large as useful."""
        enabled = self._configuration.read(BUFFER_TIMEOUT_ENABLED)
        return int(self._configuration.read(BUFFER_TIMEOUT)) if enabled else -1

    def disable_operator_chaining(self) -> StreamExecutionEnvironment:
        """Run every operator as its own stage, for debugging: each costs a shuffle."""
        self._configuration.write(CHAINING, False)
        return self

    def is_chaining_enabled(self) -> bool:
        """Return whether operators are chained where possible."""
        return bool(self._configuration.read(CHAINING))

    def is_chaining_of_operators_with_different_max_parallelism_enabled(self) -> bool:
        """Return the configured value; operators of different maximum parallelism are chained in any case."""
        return bool(self._configuration.read(CHAINING_MIXED_MAX))

    def set_restart_strategy(self, restart_strategy_configuration: RestartStrategyConfiguration) -> None:
        """Set the restart strategy (PyFlink 1.x; the keys are ``restart-strategy.*``)."""
        if not isinstance(restart_strategy_configuration, RestartStrategyConfiguration):
            cure = "RestartStrategies.fixed_delay_restart(3, 1000)"
            raise wrong("set_restart_strategy", "a restart strategy", restart_strategy_configuration, cure)
        for option, value in restart_strategy_configuration.settings().items():
            self._configuration.write(option, value)

    def set_state_backend(self, state_backend: StateBackend) -> StreamExecutionEnvironment:
        """Set the state backend (PyFlink 1.x; the key is ``state.backend.type``)."""
        if not isinstance(state_backend, StateBackend):
            raise wrong("set_state_backend", "a StateBackend", state_backend, "HashMapStateBackend()")
        for option, value in state_backend.settings().items():
            self._configuration.write(option, value)
        return self

    def enable_changelog_state_backend(self, enabled: bool) -> StreamExecutionEnvironment:
        """Set whether checkpoints are a base and the changes since (the key is ``state.changelog.enabled``)."""
        if not isinstance(enabled, bool):
            raise wrong("enable_changelog_state_backend", "True or False", enabled, "True")
        self._configuration.write(CHANGELOG, enabled)
        return self

    def is_changelog_state_backend_enabled(self) -> bool | None:
        """Return whether the changelog is enabled; None if it was never set."""
        return bool(self._configuration.read(CHANGELOG)) if self._configuration.contains_key(CHANGELOG.key) else None

    # -- checkpoints

    def enable_checkpointing(
        self, interval: int | None = None, mode: CheckpointingMode | None = None
    ) -> StreamExecutionEnvironment:
        """Take a checkpoint every ``interval`` milliseconds, at least 10."""
        if interval is None:
            warnings.warn(
                f"enable_checkpointing() without an interval is deprecated; it means {DEFAULT_CHECKPOINT_INTERVAL} ms",
                DeprecationWarning,
                stacklevel=2,
            )
            interval = DEFAULT_CHECKPOINT_INTERVAL
        if mode is not None:
            self.get_checkpoint_config().set_checkpointing_mode(mode)
        self.get_checkpoint_config().set_checkpoint_interval(interval)
        return self

    def get_checkpoint_interval(self) -> int:
        """Return the value in milliseconds; -1 without checkpoints."""
        return self.get_checkpoint_config().get_checkpoint_interval()

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """EXACTLY_ONCE unless set."""
        return self.get_checkpoint_config().get_checkpointing_mode()

    def get_checkpointing_consistency_mode(self) -> CheckpointingMode:
        """Return the same as ``get_checkpointing_mode``."""
        return self.get_checkpointing_mode()

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """As set in the checkpoint configuration."""
        return self.get_checkpoint_config().is_unaligned_checkpoints_enabled()

    def is_force_unaligned_checkpoints(self) -> bool:
        """As set in the checkpoint configuration."""
        return self.get_checkpoint_config().is_force_unaligned_checkpoints()

    def set_default_savepoint_directory(self, directory: str) -> StreamExecutionEnvironment:
        """Set the directory of savepoints that name none."""
        self._configuration.write(SAVEPOINT_DIR, directory)
        return self

    def get_default_savepoint_directory(self) -> str | None:
        """Return None if none is set."""
        directory: str | None = self._configuration.read(SAVEPOINT_DIR)
        return directory

    # -- sources

    @overload
    def from_collection(
        self,
        collection: Iterable[T],
        type_info: BasicTypeInfo | TupleTypeInfo | None = None,
        *,
        batch_size: int | None = None,
    ) -> DataStream[T]: ...

    @overload
    def from_collection(
        self, collection: Iterable[Any], type_info: TypeInformation[V] | type[V], *, batch_size: int | None = None
    ) -> DataStream[V]: ...

    def from_collection(
        self, collection: Iterable[Any], type_info: Declared = None, *, batch_size: int | None = None
    ) -> DataStream[Any]:
        """Emit the values in order, from one subtask, as values of the type: tuples and dicts become rows, integers wrap around.

        Any iterable is read completely, at once; values of a numpy array become Python's. Texts, dicts, sets and DataFrames are
        refused (``from_dataframe`` takes those of Spark). ``batch_size``: so many records are processed together, and event time
        advances after them: with 1, late records of the list are late. For tests, since every batch has a cost.
        """
        info = type_of("from_collection", type_info)
        if batch_size is not None and expect_int("from_collection", batch_size, "batch_size=1") < 1:
            raise ProgramError(
                "The batch size of from_collection is less than 1", found=str(batch_size), cure="use batch_size=1"
            )
        records, convert = records_of("from_collection", collection), collection_converter(info)
        values = list(records) if convert is None else [convert.call(value) for value in records]
        spec = SourceSpec(CollectionSource(values, info, batch_size))
        return self._source("Collection Source", spec, info).force_non_parallel()

    def from_source(
        self,
        source: Source[T],
        watermark_strategy: WatermarkStrategy,
        source_name: str,
        type_info: Declared = None,
    ) -> DataStream[T]:
        """Read a source, with timestamps and watermarks by the strategy for each of its splits.

        Records become values of ``type_info`` before the strategy sees them: rows get its names, numbers its class. A record that
        does not fit fails the job. Without ``type_info`` the source's records stay unchanged.
        """
        if not isinstance(source, Source):
            raise wrong("from_source", "a Source", source, "for a list use from_collection")
        expect_strategy("from_source", watermark_strategy)
        info = type_of("from_source", type_info)
        expect_text("from_source", source_name, "give the source a name")
        produced = source.get_produced_type() if hasattr(source, "get_produced_type") else None
        spec = SourceSpec(source, watermark_strategy, _to_convert(info, produced))
        return self._source(source_name, spec, produced if info is None else info, is_named=True)

    def add_source(
        self, source_func: AddedSource, source_name: str = "Custom Source", type_info: Declared = None
    ) -> DataStream:
        """Read a source in the form of former Flink versions: a FlinkKafkaConsumer. Deprecated: use ``from_source``."""
        if not isinstance(source_func, AddedSource):
            raise wrong("add_source", "a FlinkKafkaConsumer", source_func, "for a Source use from_source")
        return self.from_source(source_func, source_func.watermark_strategy, source_name, type_info)

    def socket_text_stream(
        self, hostname: str, port: int, delimiter: str = "\n", max_retry: int = 0, *, write_ahead: bool = False
    ) -> DataStream[str]:
        """Read lines from a socket, in one subtask, until the sender closes it and ``max_retry`` further connections (-1: for
        ever). Lines are not sent again: a failure loses lines after the latest checkpoint, so the job is at-most-once.
        ``write_ahead``: lines are logged on checkpoint storage before they are processed, and can be read again there.
        """
        source = SocketSource(hostname, port, delimiter, max_retry, write_ahead=write_ahead)
        return self._source("Socket Stream", SourceSpec(source), Types.STRING()).force_non_parallel()

    def from_dataframe(self, frame: Any, type_info: Declared = None) -> DataStream[Row]:
        """Read the rows of a Spark DataFrame as ``Row`` records: a bounded source. Spark computes it once, at the first start of
        the job, and its rows are stored with the checkpoints: after a failure the job reads the same rows again."""
        info = type_of("from_dataframe", type_info)
        spec = SourceSpec(DataFrameSource(frame), declared=_to_convert(info))
        return self._source("DataFrame", spec, info)

    def from_data_source(self, data_source: Any, type_info: Declared = None) -> DataStream[Row]:
        """Read a Python ``DataSource`` (``pyspark.sql.datasource``) with a stream reader, as ``Row`` records. Checkpoints contain
        its offsets."""
        info = type_of("from_data_source", type_info)
        spec = SourceSpec(StreamReaderSource(data_source), declared=_to_convert(info))
        return self._source(type(data_source).__name__, spec, info)

    def create_input(self, input_format: Any, type_info: Declared = None) -> DataStream:
        """Read an ``AvroInputFormat``; for other sources use ``from_source``."""
        if not isinstance(input_format, AvroInputFormat):
            raise wrong("create_input", "an AvroInputFormat", input_format, "use from_source(...) for other sources")
        return self.from_source(
            input_format.source(), WatermarkStrategy.no_watermarks(), "Custom File source", type_info
        )

    # -- execution

    def execute(self, job_name: str | None = None) -> JobExecutionResult:
        """Run the program and wait for its end. Afterwards the environment is empty again.

        Ctrl-C and SIGTERM end the driver in order: the job keeps its checkpoints, and a new start continues from the latest.
        Raises JobFailedError if the job failed for good, and JobCancelledError if it was cancelled.
        """
        with Interruption() as interruption:
            job, shown = self._started(job_name, awaited=True)
            try:
                return interruption.result_of(job)
            finally:
                shown()

    def execute_async(self, job_name: str | None = None) -> JobClient:
        """Start the program and return at once."""
        return JobClient(self._start(job_name))

    def get_execution_plan(self) -> str:
        """Return the program as JSON. Call it before ``execute``, which empties the environment."""
        return execution_plan(self._program(None))

    def close(self) -> None:
        """Discard the program that was not executed, and cached records."""
        self._pending.clear()
        for directory in self._caches.values():
            drop(directory)

    # -- inside

    def _repr_html_(self) -> str:
        """The graph of the program in a notebook. A program that is not complete shows what is missing."""
        if not self._pending:
            return "<em>an environment without a program: nothing was added since the last execute()</em>"
        try:
            program = self._program(None)
            return of_graph(build(program, self.get_parallelism(), program.configuration[MAX_PARALLELISM.key], {}))
        except TidegateError as error:
            return f"<pre>{escape(str(error))}</pre>"

    def _start(self, job_name: str | None) -> RunningJob:
        return self._started(job_name, awaited=False)[0]

    def _started(self, job_name: str | None, *, awaited: bool) -> tuple[RunningJob, Callable[[], None]]:
        program = self._program(job_name)
        self._pending.clear()
        return started(program, awaited=awaited)

    def _program(self, job_name: str | None) -> Program:
        degree = self.get_parallelism()
        return build_program(self._registry, self._pending, self._configuration, degree, job_name, self._caches)

    def _source(
        self, name: str, spec: SourceSpec, type_info: TypeInformation | None, *, is_named: bool = False
    ) -> DataStream:
        operator = self._add(name, spec, (), output_type=type_info, is_named=is_named)
        return DataStream(self, (Input(operator.id),), type_info)

    def _add(self, name: str, spec: OperatorSpec, inputs: tuple[Input, ...], **fields: Any) -> Transformation:
        """Add an operator. The registry outlives ``execute``: a later program may read a stream of an earlier one, as in Flink."""
        parallelism = fields.pop("parallelism", self.get_parallelism())
        fixed = pickled(spec) if spec.role is Role.OPERATOR else None  # sources and sinks also live on the driver
        operator = Transformation(
            len(self._registry) + 1,
            name,
            spec,
            inputs,
            parallelism=parallelism,
            pickled_spec=fixed,
            place=calling_line(),
            **fields,
        )
        self._registry[operator.id] = operator
        self._pending.append(operator.id)
        return operator

    def _transformation(self, operator_id: int) -> Transformation:
        return self._registry[operator_id]

    def _replace(self, operator_id: int, **fields: Any) -> None:
        self._registry[operator_id] = dataclasses.replace(self._registry[operator_id], **fields)


def _to_convert(type_info: TypeInformation | None, produced: TypeInformation | None = None) -> TypeInformation | None:
    """Return the type that a source's records are converted to; None if it takes any object, or is the source's own."""
    same = type_info is not None and produced is not None and type_info.describe() == produced.describe()
    return None if same or takes_anything(type_info) else type_info

"""The API users write: DataStream programs, with PyFlink's names. Exports what ``pyflink.datastream`` exports."""

from tidegate.datastream.async_data_stream import AsyncDataStream
from tidegate.datastream.checkpoint_config import CheckpointConfig
from tidegate.datastream.checkpoint_storage import CheckpointStorage, FileSystemCheckpointStorage
from tidegate.datastream.checkpointing_mode import CheckpointingMode
from tidegate.datastream.data_stream import (
    BroadcastConnectedStream,
    BroadcastStream,
    CloseableIterator,
    ConnectedStreams,
    DataStream,
    DataStreamSink,
    KeyedStream,
)
from tidegate.datastream.execution_mode import RuntimeExecutionMode
from tidegate.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention
from tidegate.datastream.functions import (
    AggregateFunction,
    AsyncFunction,
    AsyncRetryPredicate,
    AsyncRetryStrategy,
    BroadcastProcessFunction,
    CheckpointedFunction,
    CoFlatMapFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatMapFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    Partitioner,
    ProcessFunction,
    ProcessJoinFunction,
    ReduceFunction,
    RuntimeContext,
    SinkFunction,
    TwoPhaseCommitSinkFunction,
)
from tidegate.datastream.output_tag import OutputTag
from tidegate.datastream.slot_sharing_group import MemorySize, SlotSharingGroup
from tidegate.datastream.state_backend import HashMapStateBackend, StateBackend
from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment
from tidegate.datastream.time_domain import TimeDomain
from tidegate.datastream.timerservice import TimerService

__all__ = [
    "AggregateFunction",
    "AsyncDataStream",
    "AsyncFunction",
    "AsyncRetryPredicate",
    "AsyncRetryStrategy",
    "BroadcastConnectedStream",
    "BroadcastProcessFunction",
    "BroadcastStream",
    "CheckpointConfig",
    "CheckpointStorage",
    "CheckpointedFunction",
    "CheckpointingMode",
    "CloseableIterator",
    "CoFlatMapFunction",
    "CoMapFunction",
    "CoProcessFunction",
    "ConnectedStreams",
    "DataStream",
    "DataStreamSink",
    "ExternalizedCheckpointRetention",
    "FileSystemCheckpointStorage",
    "FilterFunction",
    "FlatMapFunction",
    "HashMapStateBackend",
    "KeySelector",
    "KeyedBroadcastProcessFunction",
    "KeyedCoProcessFunction",
    "KeyedProcessFunction",
    "KeyedStream",
    "MapFunction",
    "MemorySize",
    "OutputTag",
    "Partitioner",
    "ProcessFunction",
    "ProcessJoinFunction",
    "ReduceFunction",
    "RuntimeContext",
    "RuntimeExecutionMode",
    "SinkFunction",
    "SlotSharingGroup",
    "StateBackend",
    "StreamExecutionEnvironment",
    "TimeDomain",
    "TimerService",
    "TwoPhaseCommitSinkFunction",
]

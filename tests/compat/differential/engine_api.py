"""The API the programs are written against: PyFlink's names, from the package DIFFERENTIAL_API names (Tidegate by default).

Workers import the programs too; they inherit the variable, and so see the same package as the driver.
"""

from __future__ import annotations

import os
from importlib import import_module
from typing import Any

ROOT = os.environ.get("DIFFERENTIAL_API", "tidegate")

_common: Any = import_module(f"{ROOT}.common")
_watermark_strategy: Any = import_module(f"{ROOT}.common.watermark_strategy")
_datastream: Any = import_module(f"{ROOT}.datastream")
_async_retry_predicates: Any = import_module(f"{ROOT}.datastream.async_retry_predicates")
_state: Any = import_module(f"{ROOT}.datastream.state")
window: Any = import_module(f"{ROOT}.datastream.window")
_functions: Any = import_module(f"{ROOT}.datastream.functions")
_file_system: Any = import_module(f"{ROOT}.datastream.connectors.file_system")
_number_seq: Any = import_module(f"{ROOT}.datastream.connectors.number_seq")

Configuration = _common.Configuration
Duration = _common.Duration
Encoder = _common.Encoder
Instant = _common.Instant
Row = _common.Row
RowKind = _common.RowKind
Time = _common.Time
Types = _common.Types
WatermarkStrategy = _common.WatermarkStrategy
TimestampAssigner = _watermark_strategy.TimestampAssigner

AggregateFunction = _datastream.AggregateFunction
AsyncDataStream = _datastream.AsyncDataStream
AsyncFunction = _datastream.AsyncFunction
AsyncRetryStrategy = _datastream.AsyncRetryStrategy
BroadcastProcessFunction = _functions.BroadcastProcessFunction
CheckpointingMode = _datastream.CheckpointingMode
CoFlatMapFunction = _datastream.CoFlatMapFunction
CoMapFunction = _datastream.CoMapFunction
CoProcessFunction = _datastream.CoProcessFunction
DataStream = _datastream.DataStream
ExternalizedCheckpointRetention = _datastream.ExternalizedCheckpointRetention
FilterFunction = _datastream.FilterFunction
FlatMapFunction = _datastream.FlatMapFunction
KeyedBroadcastProcessFunction = _functions.KeyedBroadcastProcessFunction
KeyedCoProcessFunction = _datastream.KeyedCoProcessFunction
KeyedProcessFunction = _datastream.KeyedProcessFunction
KeySelector = _datastream.KeySelector
MapFunction = _datastream.MapFunction
OutputTag = _datastream.OutputTag
Partitioner = _datastream.Partitioner
ProcessFunction = _datastream.ProcessFunction
ReduceFunction = _datastream.ReduceFunction
RuntimeExecutionMode = _datastream.RuntimeExecutionMode
StreamExecutionEnvironment = _datastream.StreamExecutionEnvironment

AllWindowFunction = _functions.AllWindowFunction
ProcessAllWindowFunction = _functions.ProcessAllWindowFunction
ProcessWindowFunction = _functions.ProcessWindowFunction
WindowFunction = _functions.WindowFunction
empty_result_predicate = _async_retry_predicates.empty_result_predicate
has_exception_predicate = _async_retry_predicates.has_exception_predicate

AggregatingStateDescriptor = _state.AggregatingStateDescriptor
ListStateDescriptor = _state.ListStateDescriptor
MapStateDescriptor = _state.MapStateDescriptor
ReducingStateDescriptor = _state.ReducingStateDescriptor
StateTtlConfig = _state.StateTtlConfig
ValueStateDescriptor = _state.ValueStateDescriptor

BucketAssigner = _file_system.BucketAssigner
FileSink = _file_system.FileSink
FileSource = _file_system.FileSource
OutputFileConfig = _file_system.OutputFileConfig
RollingPolicy = _file_system.RollingPolicy
StreamFormat = _file_system.StreamFormat
NumberSequenceSource = _number_seq.NumberSequenceSource

_csv: Any = import_module(f"{ROOT}.datastream.formats.csv")
_table: Any = import_module(f"{ROOT}.table")
CsvBulkWriters, CsvReaderFormat, CsvSchema = _csv.CsvBulkWriters, _csv.CsvReaderFormat, _csv.CsvSchema
DataTypes = _table.DataTypes

"""``harness(...)``: a harness for every kind of function, and ``pipeline_harness(...)`` for a part of a program."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, overload

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.common import Configuration, Duration, Time, WatermarkStrategy
from tidegate.common.object_types import Declared, type_of
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.async_data_stream import AsyncDataStream
from tidegate.datastream.async_functions import AsyncFunction
from tidegate.datastream.functions import (
    AggregateFunction,
    AllWindowFunction,
    BroadcastProcessFunction,
    CoFlatMapFunction,
    CoGroupFunction,
    CoMapFunction,
    CoProcessFunction,
    FilterFunction,
    FlatJoinFunction,
    FlatMapFunction,
    JoinFunction,
    KeyedBroadcastProcessFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    KeySelector,
    MapFunction,
    ProcessAllWindowFunction,
    ProcessFunction,
    ProcessJoinFunction,
    ProcessWindowFunction,
    ReduceFunction,
    SinkFunction,
    TwoPhaseCommitSinkFunction,
    WindowFunction,
)
from tidegate.datastream.state import MapStateDescriptor
from tidegate.datastream.stream import DataStream
from tidegate.datastream.window import CountTrigger, Evictor, GlobalWindows, Trigger, WindowAssigner
from tidegate.graph.transformation import Input, OutputTag
from tidegate.operators.contracts.sink import Sink
from tidegate.operators.contracts.source import Source, SplitEnumerator, SplitReader
from tidegate.operators.contracts.specs import SourceSpec
from tidegate.testing.function_harness import CaptureSink, FunctionHarness, HarnessSnapshot, Tested

__all__ = ["Fired", "harness", "pipeline_harness"]


class HandSource(Source):
    """An input of a harness: the test emits its records."""

    def create_enumerator(self, parallelism: int, restored: Any | None) -> SplitEnumerator:
        raise NotImplementedError("the test emits the records")

    def create_reader(self, subtask: int) -> SplitReader:
        raise NotImplementedError("the test emits the records")


@dataclass(frozen=True)
class Fired:
    """What the harness of a trigger or an evictor emits when a window fires: the key, the window and its records."""

    key: Any
    window: Any
    elements: list[Any]


class _Fires(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Iterable[Any]) -> Iterable[Any]:
        yield Fired(key, context.window(), list(elements))


@dataclass
class _Wanted:
    """The arguments of ``harness``. ``used``: names of those that the kind has asked for."""

    function: Any
    given: dict[str, Any]
    env: StreamExecutionEnvironment
    streams: list[DataStream]
    output_type: Declared
    used: set[str] = field(default_factory=set)

    @property
    def name(self) -> str:
        return type(self.function).__name__

    def get(self, option: str, default: Any = None) -> Any:
        self.used.add(option)
        value = self.given.get(option)
        return default if value is None else value

    def need(self, option: str, cure: str) -> Any:
        value = self.get(option)
        if value is None:
            raise ProgramError(
                f"The harness of this function needs {option}=",
                where=f"harness of {self.name}",
                found=f"no {option}",
                cure=cure,
            )
        return value

    def keyed(self, number: int = 0) -> Any:
        """Return an input, keyed."""
        key = self.need("key", "harness(function, key=lambda value: value[0])")
        if number:
            key = self.get("key2", key)
        return self.streams[number].key_by(key, self.get("key_type"))

    def stream(self) -> Any:
        """Return the first input, keyed if there is a key."""
        return self.keyed() if self.get("key") is not None else self.streams[0]

    def connected(self) -> Any:
        if self.get("key") is None:
            return self.streams[0].connect(self.streams[1])
        return self.keyed(0).connect(self.keyed(1))

    def windowed(self, stream: Any | None = None, *, every: bool = False) -> Any:
        """Return the windows of the input. Without a window, everything is in one window, which fires for every record."""
        window, trigger = self.get("window"), self.get("trigger")
        if window is None and not every:
            window = GlobalWindows.create()
            trigger = trigger or CountTrigger.of(1)
        elif window is None:
            window = self.need("window", "harness(function, window=TumblingEventTimeWindows.of(Time.seconds(10)))")
        made = self.keyed().window(window) if stream is None else stream.window_all(window)
        return self.described(made, trigger)

    def described(self, made: Any, trigger: Any) -> Any:
        if trigger is not None:
            made = made.trigger(trigger)
        if self.get("evictor") is not None:
            made = made.evictor(self.get("evictor"))
        if self.get("allowed_lateness") is not None:
            made = made.allowed_lateness(self.get("allowed_lateness"))
        if self.get("late_tag") is not None:
            made = made.side_output_late_data(self.get("late_tag"))
        return made


Build = Callable[[_Wanted], Any]
Selector = Callable[[Any], Any] | KeySelector[Any, Any]
Built = DataStream[Any] | Mapping[str, DataStream[Any]]


def _co(method: str) -> Build:
    return lambda w: getattr(w.connected(), method)(w.function, w.output_type)


def _one(method: str) -> Build:
    return lambda w: getattr(w.stream(), method)(w.function, w.output_type)


def _broadcast(wanted: _Wanted, first: Any) -> Any:
    states = wanted.need(
        "broadcast_state",
        'harness(function, broadcast_state=MapStateDescriptor("rules", Types.STRING(), Types.LONG()))',
    )
    descriptors = states if isinstance(states, list | tuple) else [states]
    return first.connect(wanted.streams[1].broadcast(*descriptors)).process(wanted.function, wanted.output_type)


def _reduce(wanted: _Wanted) -> Any:
    if wanted.get("window") is None:
        return wanted.keyed().reduce(wanted.function)
    return wanted.windowed().reduce(wanted.function)


def _aggregate(wanted: _Wanted) -> Any:
    windows = wanted.windowed()
    then = wanted.get("window_function")
    return windows.aggregate(wanted.function, window_function=then, output_type=wanted.output_type)


def _trigger(wanted: _Wanted) -> Any:
    window = wanted.need("window", "harness(trigger, window=TumblingEventTimeWindows.of(Time.seconds(10)), key=...)")
    return wanted.described(wanted.keyed().window(window), wanted.function).process(_Fires())


def _evictor(wanted: _Wanted) -> Any:
    window = wanted.need("window", "harness(evictor, window=TumblingEventTimeWindows.of(Time.seconds(10)), key=...)")
    windows = wanted.described(wanted.keyed().window(window), wanted.get("trigger"))
    return windows.evictor(wanted.function).process(_Fires())


def _window_join(method: str) -> Build:
    def build(wanted: _Wanted) -> Any:
        key = wanted.need("key", "harness(function, key=lambda value: value[0], window=...)")
        window = wanted.need("window", "harness(function, window=TumblingEventTimeWindows.of(Time.seconds(10)))")
        joined = getattr(wanted.streams[0], method)(wanted.streams[1]).where(key, wanted.get("key_type"))
        windows = joined.equal_to(wanted.get("key2", key)).window(window)
        return wanted.described(windows, wanted.get("trigger")).apply(wanted.function, wanted.output_type)

    return build


def _interval_join(wanted: _Wanted) -> Any:
    lower, upper = wanted.need("between", "harness(function, key=..., between=(-5_000, 5_000))")
    joined = wanted.keyed(0).interval_join(wanted.keyed(1))
    return joined.between(_time(lower), _time(upper)).process(wanted.function, wanted.output_type)


def _time(bound: Any) -> Any:
    return Time.milliseconds(bound) if isinstance(bound, int) else bound


def _async(wanted: _Wanted) -> Any:
    wait = AsyncDataStream.ordered_wait if wanted.get("ordered", True) else AsyncDataStream.unordered_wait
    timeout = _time(wanted.get("timeout", 10_000))
    return wait(wanted.streams[0], wanted.function, timeout, wanted.get("capacity", 100), wanted.output_type)


_KINDS: list[tuple[type[Any] | tuple[type[Any], ...], int, Build]] = [
    (KeyedBroadcastProcessFunction, 2, lambda w: _broadcast(w, w.keyed())),
    (BroadcastProcessFunction, 2, lambda w: _broadcast(w, w.streams[0])),
    (KeyedCoProcessFunction, 2, lambda w: w.keyed(0).connect(w.keyed(1)).process(w.function, w.output_type)),
    (CoProcessFunction, 2, _co("process")),
    (CoMapFunction, 2, _co("map")),
    (CoFlatMapFunction, 2, _co("flat_map")),
    (ProcessJoinFunction, 2, _interval_join),
    ((JoinFunction, FlatJoinFunction), 2, _window_join("join")),
    (CoGroupFunction, 2, _window_join("co_group")),
    (KeyedProcessFunction, 1, lambda w: w.keyed().process(w.function, w.output_type)),
    (ProcessFunction, 1, _one("process")),
    (ProcessWindowFunction, 1, lambda w: w.windowed().process(w.function, w.output_type)),
    (WindowFunction, 1, lambda w: w.windowed().apply(w.function, w.output_type)),
    (
        ProcessAllWindowFunction,
        1,
        lambda w: w.windowed(w.streams[0], every=True).process(w.function, w.output_type),
    ),
    (AllWindowFunction, 1, lambda w: w.windowed(w.streams[0], every=True).apply(w.function, w.output_type)),
    (AggregateFunction, 1, _aggregate),
    (ReduceFunction, 1, _reduce),
    (Trigger, 1, _trigger),
    (Evictor, 1, _evictor),
    (MapFunction, 1, _one("map")),
    (FlatMapFunction, 1, _one("flat_map")),
    (FilterFunction, 1, lambda w: w.stream().filter(w.function)),
    (AsyncFunction, 1, _async),
    (Sink, 1, lambda w: w.streams[0].sink_to(w.function)),
    ((SinkFunction, TwoPhaseCommitSinkFunction), 1, lambda w: w.streams[0].add_sink(w.function)),
]
"""The first class that fits counts."""
_BROADCAST = (KeyedBroadcastProcessFunction, BroadcastProcessFunction)
_SINKS = (Sink, SinkFunction, TwoPhaseCommitSinkFunction)


def harness(
    function: Any,
    *,
    key: Selector | None = None,
    key2: Selector | None = None,
    key_type: Declared = None,
    input_type: Declared = None,
    input_type2: Declared = None,
    output_type: Declared = None,
    window: WindowAssigner[Any, Any] | None = None,
    trigger: Trigger[Any, Any] | None = None,
    evictor: Evictor[Any, Any] | None = None,
    allowed_lateness: Time | Duration | int | None = None,
    late_tag: OutputTag | None = None,
    window_function: Any = None,
    between: tuple[Time | Duration | int, Time | Duration | int] | None = None,
    broadcast_state: MapStateDescriptor | Sequence[MapStateDescriptor] | None = None,
    timeout: Time | Duration | int | None = None,
    capacity: int | None = None,
    ordered: bool | None = None,
    parallelism: int = 1,
    max_parallelism: int | None = None,
    configuration: Mapping[str, Any] | None = None,
    restore: HarnessSnapshot | None = None,
) -> FunctionHarness:
    """Return a harness in which the function is open, as in a running job. Close it, or use it in a ``with`` statement.

    The class of the function decides what it is tested as; a plain callable needs ``pipeline_harness``. ``key``: the key
    selector of the (first) input; ``key2``: of the second input, if it differs. ``window`` and the arguments after it: for
    window functions, aggregates, triggers and evictors. ``between``: the bounds of an interval join, in milliseconds.
    ``broadcast_state``: a descriptor, or a list. ``timeout``, ``capacity``, ``ordered``: of an asynchronous function.
    ``configuration``: keys such as ``state.backend.type``. ``restore``: a snapshot of an earlier harness, at any parallelism.
    """
    found = next((kind for kind in _KINDS if isinstance(function, kind[0])), None)
    if found is None:
        cure = "pass an object of a function class; for a plain callable use pipeline_harness(lambda stream: stream.map(f))"
        raise wrong("harness", "an object of a function class", function, cure)
    _, inputs, build = found
    options = {
        "key": key,
        "key2": key2,
        "key_type": key_type,
        "window": window,
        "trigger": trigger,
        "evictor": evictor,
        "allowed_lateness": allowed_lateness,
        "late_tag": late_tag,
        "window_function": window_function,
        "between": between,
        "broadcast_state": broadcast_state,
        "timeout": timeout,
        "capacity": capacity,
        "ordered": ordered,
    }
    env = _environment(parallelism, max_parallelism, configuration)
    streams = [_input(env, n, (input_type, input_type2)[n]) for n in range(inputs)]
    wanted = _Wanted(function, options, env, streams, output_type)
    result = build(wanted)
    unused = sorted(name for name, value in options.items() if value is not None and name not in wanted.used)
    if unused:
        raise ProgramError(
            "The harness of this function does not use all of its arguments",
            where=f"harness of {wanted.name}",
            found=", ".join(f"{name}=" for name in unused),
            cure=f"leave them out; this kind uses {', '.join(f'{name}=' for name in sorted(wanted.used)) or 'none of these'}",
        )
    captures: dict[str | None, CaptureSink] = {}
    operator = max(env._registry)
    if not isinstance(function, _SINKS):
        captures[None] = CaptureSink()
        result.sink_to(captures[None])
    program = env._program(f"harness of {wanted.name}")
    broadcast = isinstance(function, _BROADCAST)
    return FunctionHarness(
        Tested(wanted.name, program, operator, inputs, captures, broadcast, divided=True), restored=restore
    )


@overload
def pipeline_harness(
    build: Callable[[DataStream[Any]], Built],
    *,
    inputs: Literal[1] = 1,
    input_type: Declared = None,
    watermarks: WatermarkStrategy | None = None,
    parallelism: int = 1,
    max_parallelism: int | None = None,
    configuration: Mapping[str, Any] | None = None,
    restore: HarnessSnapshot | None = None,
) -> FunctionHarness: ...


@overload
def pipeline_harness(
    build: Callable[[DataStream[Any], DataStream[Any]], Built],
    *,
    inputs: Literal[2],
    input_type: Declared = None,
    input_type2: Declared = None,
    watermarks: WatermarkStrategy | None = None,
    parallelism: int = 1,
    max_parallelism: int | None = None,
    configuration: Mapping[str, Any] | None = None,
    restore: HarnessSnapshot | None = None,
) -> FunctionHarness: ...


def pipeline_harness(
    build: Callable[..., Built],
    *,
    inputs: int = 1,
    input_type: Declared = None,
    input_type2: Declared = None,
    watermarks: WatermarkStrategy | None = None,
    parallelism: int = 1,
    max_parallelism: int | None = None,
    configuration: Mapping[str, Any] | None = None,
    restore: HarnessSnapshot | None = None,
) -> FunctionHarness:
    """Return a harness of a part of a program: ``build(stream)``, or ``build(stream1, stream2)``, returns a stream.

    It may also return a dict of streams: ``{"main": stream, "late": stream.get_side_output(late)}``. The stream named ``main`` is
    the main output, and the others are read by ``get_side_output(name)``. State and timers are those of the last operator of the
    main output. ``watermarks``: a strategy for the inputs, which then give records their timestamps and watermarks.
    """
    env = _environment(parallelism, max_parallelism, configuration)
    streams = [_input(env, n, (input_type, input_type2)[n], watermarks) for n in range(inputs)]
    built = build(*streams)
    outputs = built if isinstance(built, Mapping) else {"main": built}
    if "main" not in outputs or not all(isinstance(stream, DataStream) for stream in outputs.values()):
        cure = 'return the last stream, or {"main": stream, "late": another}'
        raise wrong("pipeline_harness", "a function that returns a stream", built, cure)
    captures: dict[str | None, CaptureSink] = {}
    for name, stream in outputs.items():
        capture = captures[None if name == "main" else name] = CaptureSink()
        stream.sink_to(capture)
    operator = outputs["main"]._inputs[0].upstream
    return FunctionHarness(
        Tested("the pipeline", env._program("pipeline harness"), operator, inputs, captures), restored=restore
    )


def _environment(
    parallelism: int, max_parallelism: int | None, configuration: Mapping[str, Any] | None
) -> StreamExecutionEnvironment:
    env = StreamExecutionEnvironment(Configuration.from_dict(dict(configuration or {})))
    env.set_parallelism(parallelism)
    if max_parallelism is not None:
        env.set_max_parallelism(max_parallelism)
    return env


def _input(
    env: StreamExecutionEnvironment,
    number: int,
    declared: Declared,
    watermarks: WatermarkStrategy | None = None,
) -> DataStream:
    info = type_of("harness", declared)
    source = env._add(f"input {number + 1}", SourceSpec(HandSource(), watermarks), (), output_type=info, parallelism=1)
    return DataStream(env, (Input(source.id),), info)

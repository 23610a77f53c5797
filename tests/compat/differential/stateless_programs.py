"""Operators without key: functions, types, side outputs, partitionings, sources and sinks."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import Surroundings, program, whole
from tests.compat.differential.engine_api import (
    FilterFunction,
    FlatMapFunction,
    KeySelector,
    MapFunction,
    NumberSequenceSource,
    OutputTag,
    Partitioner,
    ProcessFunction,
    Row,
    Types,
    WatermarkStrategy,
)


@program(parallelisms=(1, 2), modes=("STREAMING", "BATCH"))
def lambdas(env: Any) -> Any:
    numbers = env.from_collection([1, 2, 3, 4])
    return numbers.map(lambda v: v * 10).flat_map(lambda v: [v] * (v // 10)).filter(lambda v: v != 20)


class Scale(MapFunction):
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def open(self, runtime_context: Any) -> None:
        self.opened = runtime_context.get_number_of_parallel_subtasks()

    def map(self, value: int) -> Any:
        return value * self.factor, self.opened


class Signs(FlatMapFunction):
    def flat_map(self, value: Any) -> Any:
        yield value[0]
        if value[0] % 4:
            yield -value[0]


class Positive(FilterFunction):
    def filter(self, value: int) -> bool:
        return value > 0


@program()
def function_objects(env: Any) -> Any:
    """``open`` is called before the first record; a filter, a flat map that yields one or two."""
    scaled = env.from_collection([1, 2, 3]).rebalance().map(Scale(2))
    return scaled.union(scaled.flat_map(Signs()).filter(Positive()))


class Picky(ProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Any:
        return [None, [], [value], (value, -value), iter([value]), iter(())][value]


@program(parallelisms=(1,), key=whole)
def results_of_process_functions(env: Any) -> Any:
    """None, lists, tuples and iterators of results."""
    return env.from_collection(range(6)).process(Picky())


@program(parallelisms=(1,), key=whole)
def truth_of_filters(env: Any) -> Any:
    """A filter's answer is taken by its truth."""
    return env.from_collection([0, 1, "", "a", None, [], [0]]).filter(lambda v: v)


class Sort(ProcessFunction):
    odd = OutputTag("odd", Types.INT())
    three = OutputTag("three", Types.ROW_NAMED(["n", "text"], [Types.INT(), Types.STRING()]))
    unread = OutputTag("unread", Types.STRING())

    def process_element(self, value: int, ctx: Any) -> Any:
        yield value
        if value % 2:
            yield self.odd, value
        if value % 3 == 0:
            yield self.three, Row(value, "three")
        yield self.unread, "nobody listens"


@program(parallelisms=(1, 2))
def side_outputs(env: Any) -> Any:
    """Read before and after other operators on the main output; one is read twice, one not at all."""
    sorted_ = env.from_collection([1, 2, 3, 4, 5, 6]).process(Sort(), Types.INT())
    odd = sorted_.get_side_output(Sort.odd)
    main = sorted_.map(lambda v: ("main", v))
    three = sorted_.get_side_output(Sort.three).map(lambda row: ("three", row.n, row["text"], row[0]))
    again = sorted_.get_side_output(OutputTag("odd", Types.INT())).map(lambda v: ("again", v))
    return main.union(odd.map(lambda v: ("odd", v)), three, again)


@program()
def union_of_streams(env: Any) -> Any:
    """Of itself, of a partitioned stream, of a keyed one."""
    a, b = env.from_collection([1, 2, 3]), env.from_collection([3, 4])
    return a.union(a, b.rebalance(), b.key_by(lambda v: v)).map(lambda v: v + 1)


class WithSubtask(MapFunction):
    def open(self, runtime_context: Any) -> None:
        self.subtask = runtime_context.get_index_of_this_subtask()
        self.parallelism = runtime_context.get_number_of_parallel_subtasks()

    def map(self, value: Any) -> Any:
        return value, self.subtask, self.parallelism


class Last(Partitioner):
    def partition(self, key: Any, num_partitions: int) -> int:
        return num_partitions - 1 if key else 0


class IsBig(KeySelector):
    def get_key(self, value: int) -> bool:
        return value > 2


@program(runs_itself=True)
def custom_partitioners(env: Any, surroundings: Surroundings) -> Any:
    """PyFlink tells partitioners the number of subtasks in ``execute`` only, so the records are printed."""
    numbers = env.from_collection([0, 1, 2, 3, 4])
    numbers.partition_custom(Last(), IsBig()).map(WithSubtask()).print("object")
    numbers.partition_custom(lambda key, n: (key + 1) % n, lambda v: v).map(WithSubtask()).print("callables")
    env.execute()
    return surroundings.printed()


@program()
def partitionings_that_are_determined(env: Any) -> Any:
    """Everything to every subtask; nothing moves."""
    numbers = env.from_collection([1, 2, 3])
    everywhere = numbers.broadcast().map(WithSubtask()).map(lambda r: ("broadcast", *r))
    placed = numbers.rebalance().map(WithSubtask())
    stayed = placed.forward().map(WithSubtask()).map(lambda r: ("forward", r[0][0], r[0][1] == r[1]))
    return everywhere.union(stayed)


@program(parallelisms=(1,))
def parallelism_changed_on_the_way(env: Any) -> Any:
    """The environment's parallelism holds for what is added after it was set, not for what was there before."""
    before = env.from_collection([1]).broadcast().map(WithSubtask())
    env.set_parallelism(3)
    between = before.broadcast().map(WithSubtask())
    env.set_parallelism(2)
    return between.broadcast().map(WithSubtask())


@program()
def partitionings_that_are_not(env: Any) -> Any:
    """Where records go is the engine's choice, what comes out is not."""
    numbers = env.from_collection(range(8))
    ways = [numbers.rebalance(), numbers.rescale(), numbers.shuffle(), numbers.rebalance().map(str).shuffle()]
    mapped = [way.map(lambda v, n=n: (n, v)) for n, way in enumerate(ways)]
    return mapped[0].union(*mapped[1:])


@program()
def number_sequence(env: Any) -> Any:
    source = NumberSequenceSource(1, 20)
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").map(lambda v: v * v)


@program(runs_itself=True, parallelisms=(1,), key=whole)
def one_stream_in_two_jobs(env: Any, surroundings: Surroundings) -> Any:
    """``execute_and_collect`` with a limit, then of a stream that an earlier job has used."""
    numbers = env.from_collection([5, 6, 7, 8]).map(lambda v: v * 2)
    limited = numbers.execute_and_collect(limit=3)
    with numbers.map(lambda v: v + 1).execute_and_collect("second") as iterator:
        return [list(limited), list(iterator)]


class Divide(ProcessFunction):
    def process_element(self, value: int, ctx: Any) -> Any:
        yield 1 // value


@program(parallelisms=(1,), fails_with="ZeroDivisionError")
def failing_map(env: Any) -> Any:
    return env.from_collection([1, 0]).map(lambda v: 1 // v)


@program(parallelisms=(1,), fails_with="ZeroDivisionError")
def failing_process(env: Any) -> Any:
    return env.from_collection([1, 0]).process(Divide())


@program(fails_with="ZeroDivisionError")
def failing_key_selector(env: Any) -> Any:
    return env.from_collection([1, 0]).key_by(lambda v: 1 // v).reduce(lambda a, b: a + b)


class NeverOpens(MapFunction):
    def open(self, runtime_context: Any) -> None:
        raise OSError("no")

    def map(self, value: int) -> int:
        return value


@program(parallelisms=(1,), fails_with="OSError")
def failing_open(env: Any) -> Any:
    return env.from_collection([1]).map(NeverOpens())

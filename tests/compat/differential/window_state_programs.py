"""Windows: state of every kind, triggers one around the other, assigners of the program that merge or give several windows."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import first, program
from tests.compat.differential.engine_api import (
    AggregateFunction,
    AggregatingStateDescriptor,
    ListStateDescriptor,
    MapStateDescriptor,
    OutputTag,
    ProcessWindowFunction,
    ReducingStateDescriptor,
    Row,
    Types,
    ValueStateDescriptor,
    window,
)
from tests.compat.differential.window_programs import (
    EVENTS,
    SESSION,
    SLIDING,
    TUMBLING,
    AllListed,
    EverySecond,
    Listed,
    Mean,
    TriggerResult,
    Whole,
    described,
    events,
    keyed,
)

FOREVER = (1 << 63) - 1
TWO = window.CountTrigger.of(2)


@program(key=first)
def sessions_that_fire_by_count(env: Any) -> Any:
    """The count survives merges."""
    return keyed(env).window(SESSION).trigger(TWO).reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


@program(key=first)
def sliding_windows_purged_by_count(env: Any) -> Any:
    return keyed(env).window(SLIDING).trigger(window.PurgingTrigger.of(TWO)).process(Listed())


@program(key=first)
def tumbling_windows_purged_by_count(env: Any) -> Any:
    windows = keyed(env).window(TUMBLING).trigger(window.PurgingTrigger.of(TWO))
    return windows.reduce(lambda a, b: (a[0], a[1] + b[1]))


@program()
def all_windows_purged_by_count(env: Any) -> Any:
    return events(env).window_all(TUMBLING).trigger(window.PurgingTrigger.of(TWO)).process(AllListed())


@program(key=first)
def count_windows_with_functions(env: Any) -> Any:
    """Sliding by one, and by more than their size."""
    aggregated = keyed(env).count_window(3, 1).aggregate(Mean(), Whole())
    reduced = keyed(env).count_window(2).reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())
    apart = keyed(env).count_window(2, 3).process(Listed())
    named = reduced.map(lambda r: (f"{r[0]} reduced", *r[1:])).union(apart.map(lambda r: (f"{r[0]} apart", *r[1:])))
    return aggregated.union(named)


class ByTimers(window.Trigger):  # type: ignore[misc]
    """A timer for every record, a deleted one, one that a timer sets; every result a trigger can give."""

    def __init__(self) -> None:
        self.fired = ValueStateDescriptor("fired", Types.LONG())

    def on_element(self, element: Any, timestamp: int, window: Any, ctx: Any) -> Any:
        ctx.register_event_time_timer(timestamp + 100)
        ctx.register_event_time_timer(timestamp + 101)
        ctx.delete_event_time_timer(timestamp + 101)
        return TriggerResult.CONTINUE

    def on_event_time(self, time: int, window: Any, ctx: Any) -> Any:
        fired = ctx.get_partitioned_state(self.fired)
        count = (fired.value() or 0) + 1
        fired.update(count)
        if count == 2:
            ctx.register_event_time_timer(5000)
        order = [TriggerResult.FIRE, TriggerResult.FIRE_AND_PURGE, TriggerResult.CONTINUE, TriggerResult.PURGE]
        return order[count % 4]

    def on_processing_time(self, time: int, window: Any, ctx: Any) -> Any:
        return TriggerResult.CONTINUE

    def on_merge(self, window: Any, ctx: Any) -> None:
        raise AssertionError("global windows do not merge")

    def clear(self, window: Any, ctx: Any) -> None:
        ctx.get_partitioned_state(self.fired).clear()


@program(key=first)
def global_windows_with_timers(env: Any) -> Any:
    return keyed(env).window(window.GlobalWindows.create()).trigger(ByTimers()).process(Listed())


@program()
def global_windows_without_a_trigger(env: Any) -> Any:
    return keyed(env).window(window.GlobalWindows.create()).process(Listed())


class Joined(window.MergingWindowAssigner):  # type: ignore[misc]
    """Windows of four milliseconds; those that overlap or touch are joined, up to twelve."""

    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return [window.TimeWindow(timestamp, timestamp + 4)]

    def merge_windows(self, windows: Any, callback: Any) -> None:
        groups: list[list[Any]] = []
        for found in sorted(windows, key=lambda w: w.start):
            if groups and found.start <= groups[-1][-1].end and found.end - groups[-1][0].start <= 12:
                groups[-1].append(found)
            else:
                groups.append([found])
        for group in groups:
            if len(group) > 1:
                callback.merge(list(group), window.TimeWindow(group[0].start, max(w.end for w in group)))

    def get_default_trigger(self, env: Any) -> Any:
        return window.EventTimeTrigger()

    def get_window_serializer(self) -> Any:
        return window.TimeWindowSerializer()

    def is_event_time(self) -> bool:
        return True


@program(key=first)
def windows_merged_by_an_assigner_of_the_program(env: Any) -> Any:
    windows = keyed(env, sorted(EVENTS, key=lambda v: v[1])).window(Joined())
    return windows.reduce(lambda a, b: (a[0], a[1] + b[1]), Whole())


class NoneToThree(window.WindowAssigner):  # type: ignore[misc]
    def assign_windows(self, element: Any, timestamp: int, context: Any) -> Any:
        return [window.CountWindow(number) for number in range(element[1] % 4)]

    def get_default_trigger(self, env: Any) -> Any:
        return window.CountTrigger.of(2)

    def get_window_serializer(self) -> Any:
        return window.CountWindowSerializer()

    def is_event_time(self) -> bool:
        return False


class Numbered(ProcessWindowFunction):
    def process(self, key: Any, context: Any, elements: Any) -> Any:
        found = context.window()
        yield key, found.id, [element[1] for element in elements], found.max_timestamp() == FOREVER


@program(key=first)
def a_record_in_several_windows_or_none(env: Any) -> Any:
    return keyed(env).window(NoneToThree()).process(Numbered())


class Told(AggregateFunction):
    def create_accumulator(self) -> Any:
        return 0

    def add(self, value: Any, accumulator: Any) -> Any:
        return accumulator + value

    def get_result(self, accumulator: Any) -> Any:
        return f"<{accumulator}>"

    def merge(self, a: Any, b: Any) -> Any:
        return a + b


class OfTheWindow(ProcessWindowFunction):
    """State of every kind, in the window's own store."""

    def open(self, runtime_context: Any) -> None:
        self.list = ListStateDescriptor("list", Types.INT())
        self.map = MapStateDescriptor("map", Types.INT(), Types.STRING())
        self.sum = ReducingStateDescriptor("sum", lambda a, b: a + b, Types.LONG())
        self.told = AggregatingStateDescriptor("told", Told(), Types.LONG())
        self.last = ValueStateDescriptor("last", Types.TUPLE([Types.INT(), Types.STRING()]))

    def states(self, store: Any) -> tuple[Any, ...]:
        lists, maps = store.get_list_state(self.list), store.get_map_state(self.map)
        folded = store.get_reducing_state(self.sum), store.get_aggregating_state(self.told)
        return lists, maps, *folded, store.get_state(self.last)

    def store(self, context: Any) -> Any:
        return context.window_state()

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        values = [element[1] for element in elements]
        lists, maps, total, told, last = self.states(self.store(context))
        lists.add(len(values))
        maps.put(len(values), str(values))
        total.add(sum(values))
        told.add(1)
        last.update((len(values), "last"))
        found = list(lists.get()), sorted(maps.items()), total.get(), told.get(), last.value()
        yield key, described(context.window()), found

    def clear(self, context: Any) -> None:
        for state in self.states(context.window_state()):
            state.clear()


class OfTheKey(OfTheWindow):
    def store(self, context: Any) -> Any:
        return context.global_state()

    def clear(self, context: Any) -> None:
        pass


@program(key=first)
def every_state_of_a_window(env: Any) -> Any:
    return keyed(env).window(TUMBLING).trigger(EverySecond()).process(OfTheWindow())


@program(key=first)
def every_state_of_a_key_in_windows(env: Any) -> Any:
    return keyed(env).window(TUMBLING).trigger(EverySecond()).process(OfTheKey())


class Aside(ProcessWindowFunction):
    told = OutputTag("told", Types.STRING())

    def process(self, key: Any, context: Any, elements: Any) -> Any:
        count = len(list(elements))
        yield self.told, f"{key} {count} {described(context.window())}"
        yield (
            key,
            described(context.window()),
            count,
            context.current_watermark(),
            context.current_processing_time() > 0,
        )


@program()
def side_outputs_of_windows(env: Any) -> Any:
    """With an allowed lateness; the watermark is that of the end."""
    main = keyed(env).window(TUMBLING).allowed_lateness(1000).process(Aside())
    return main.map(str, Types.STRING()).union(main.get_side_output(Aside.told))


class Accumulated(AggregateFunction):
    def create_accumulator(self) -> Any:
        return Row(0, [], {})

    def add(self, value: Any, accumulator: Any) -> Any:
        total, values, last = accumulator
        return Row(total + value[1], [*values, value[1]], {**last, value[0]: value[1]})

    def get_result(self, accumulator: Any) -> Any:
        return Row(*accumulator)

    def merge(self, a: Any, b: Any) -> Any:
        return Row(a[0] + b[0], a[1] + b[1], {**a[2], **b[2]})


@program()
def accumulators_of_a_declared_row(env: Any) -> Any:
    names, texts = ["total", "values", "last"], Types.MAP(Types.STRING(), Types.INT())
    declared = Types.ROW_NAMED(names, [Types.LONG(), Types.LIST(Types.INT()), texts])
    return keyed(env).window(TUMBLING).aggregate(Accumulated(), accumulator_type=declared, output_type=declared)

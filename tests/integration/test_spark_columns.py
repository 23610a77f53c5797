"""Sources that hand over column batches, on Spark: called, inlined and on columns give the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tests.column_source import ColumnSource
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

MakeEnv = Callable[..., StreamExecutionEnvironment]
COUNT = 20_000


class Last(KeyedProcessFunction):
    def open(self, runtime_context: Any) -> None:
        self.count = runtime_context.get_state(ValueStateDescriptor("count", Types.LONG()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        n = (self.count.value() or 0) + 1
        self.count.update(n)
        if n % 100 == 0:
            yield ctx.get_current_key(), n, ctx.timestamp() is not None, value[2]


def results(make_env: MakeEnv, key: Any, key_type: Any, *, as_columns: bool, inline: bool) -> list[Any]:
    env = make_env({"tidegate.functions.inline": inline})
    strategy = WatermarkStrategy.for_monotonous_timestamps()
    records = env.from_source(ColumnSource(COUNT, as_columns=as_columns), strategy, "records")
    halves = records.map(lambda r: (r[0], r[1] * 0.5 + 1, r[2], r[3])).filter(lambda r: r[1] > 10.5)
    return sorted(halves.key_by(key, key_type).process(Last()).execute_and_collect(), key=repr)


def test_columns_from_the_source_to_the_shuffle(make_env: MakeEnv) -> None:
    for key, key_type in ((lambda r: r[2], Types.STRING()), (lambda r: r[0] % 5, Types.LONG()), (lambda r: r[3], None)):
        called = results(make_env, key, key_type, as_columns=False, inline=False)
        assert len(called) > 100
        assert results(make_env, key, key_type, as_columns=True, inline=True) == called

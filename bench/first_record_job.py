"""The smallest program that prints: what `tidegate run` needs for its first record."""

from __future__ import annotations

from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.from_collection(list(range(4)), Types.LONG()).map(lambda number: number + 1, Types.LONG()).print()
env.execute("first record")

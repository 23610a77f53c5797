# mypy: ignore-errors
"""A default that remembers."""

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Distinct(KeyedProcessFunction):
    def process_element(self, value, ctx, seen=[]):  # noqa: B006
        if value[1] % 7 not in seen:
            seen.append(value[1] % 7)  # BUG
            yield value


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.key_by(lambda event: event[0]).process(Distinct()).uid("distinct").print()
env.execute("mutable default")

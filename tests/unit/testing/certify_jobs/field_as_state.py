# mypy: ignore-errors
"""A count in a field: it is lost with its worker."""

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Count(KeyedProcessFunction):
    def open(self, runtime_context):
        self.counts = {}

    def process_element(self, value, ctx):
        key = ctx.get_current_key()
        self.counts[key] = self.counts.get(key, 0) + 1  # BUG
        yield key, self.counts[key]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.key_by(lambda event: event[0]).process(Count()).uid("count").print()
env.execute("field")

# mypy: ignore-errors
"""A dict as the key: equal dicts may have different keys."""

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor


class Total(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value, ctx):
        self.total.update((self.total.value() or 0) + 1)
        yield value["user"], self.total.value()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([{"user": f"user-{n % 5}", "shop": n % 2, "n": n} for n in range(40)]).uid("events")
events.key_by(lambda event: str({k: event[k] for k in event if k != "n"})).process(Total()).uid("total").print()  # BUG
env.execute("unordered key")

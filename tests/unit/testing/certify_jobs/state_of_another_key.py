# mypy: ignore-errors
"""State of the first key is used for all keys."""

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Resume(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.before = None

    def process_element(self, value, ctx):
        if self.before is None:
            self.before = self.total.value() or 0  # BUG
        self.before += value[1]
        self.total.update(self.before)
        yield value[0], self.total.value()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.key_by(lambda event: event[0]).process(Resume()).uid("resume").print()
env.execute("state of another key")

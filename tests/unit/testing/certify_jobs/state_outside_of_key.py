# mypy: ignore-errors
"""State is read in open, where there is no key."""

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Resume(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.before = self.total.value()  # BUG

    def process_element(self, value, ctx):
        self.total.update((self.before or 0) + value[1])
        yield value[0], self.total.value()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.key_by(lambda event: event[0]).process(Resume()).uid("resume").print()
env.execute("state outside of key")

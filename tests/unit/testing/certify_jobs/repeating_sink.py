# mypy: ignore-errors
"""A sink that appends: it writes again after a failure."""

from tidegate.common import Types
from tidegate.datastream import SinkFunction, StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Append(SinkFunction):
    def invoke(self, value, context):
        with open("/nowhere/else.txt", "a") as file:
            file.write(f"{value}\n")


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.add_sink(Append())  # BUG
env.execute("repeating sink")

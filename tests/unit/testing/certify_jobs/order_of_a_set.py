# mypy: ignore-errors
"""The first element of a set decides."""

from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


def first_word(event):
    words = {event[0], "x" + event[0], "y" + event[0]}  # BUG
    return next(iter(words)), event[1]


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.map(first_word).print()
env.execute("set")

# mypy: ignore-errors
"""A random number in the output."""

import random

from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


def sampled(event):
    return event[0], event[1], random.randint(0, 1_000)  # BUG


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.map(sampled).print()
env.execute("randomness")

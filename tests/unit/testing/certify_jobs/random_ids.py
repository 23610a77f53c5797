# mypy: ignore-errors
"""A new id for each record: unseeded randomness."""

import uuid

from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


def with_id(event):
    return str(uuid.uuid4()), event[1]  # BUG


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.map(with_id).print()
env.execute("ids")

# mypy: ignore-errors
"""The time of day decides."""

from datetime import datetime

from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


def stamped(event):
    return event[0], event[1], datetime.now().isoformat()  # BUG


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.map(stamped).print()
env.execute("wall clock")

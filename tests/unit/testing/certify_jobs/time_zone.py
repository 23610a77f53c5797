# mypy: ignore-errors
"""The local day of a time: another machine has another one."""

from datetime import datetime

from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


def day(event):
    moment = datetime.fromtimestamp(1_700_000_000 + event[1] * 3_600)  # BUG
    return event[0], moment.strftime("%Y-%m-%d")


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.map(day).print()
env.execute("time zone")

# mypy: ignore-errors
"""Everything that looks like a fault and is none: caches, seeded randomness, measured time, sorted sets."""

import random
import time
from datetime import UTC, datetime

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

PAIR = Types.TUPLE([Types.STRING(), Types.LONG()])


class Careful(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))
        self.names, self.slowest = {}, 0.0

    def process_element(self, value, ctx):
        started = time.time()
        name = self.names.setdefault(value[0], value[0].upper())
        dice = random.Random(value[1])
        words = sorted({name, "a", "b"})
        day = datetime.fromtimestamp(1_700_000_000 + value[1] * 3_600, UTC).strftime("%Y-%m-%d")
        self.total.update((self.total.value() or 0) + value[1])
        self.slowest = max(self.slowest, time.time() - started)
        yield name, dice.randrange(100), words[0], day, self.total.value()


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
env.enable_checkpointing(1_000)
events = env.from_collection([(f"user-{n % 5}", n) for n in range(40)], PAIR).uid("events")
events.key_by(lambda event: event[0]).process(Careful()).uid("careful").print()
env.execute("right")

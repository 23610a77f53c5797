"""Running totals per customer, in keyed state: the first program of the README.

python examples/keyed_totals.py
"""

from collections.abc import Iterator

from tidegate.common import Types
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.state import ValueStateDescriptor

ORDERS = [("ada", 30), ("bob", 5), ("ada", 12), ("eve", 8), ("bob", 7), ("ada", 1)]
ORDER = Types.TUPLE([Types.STRING(), Types.LONG()])


class RunningTotal(KeyedProcessFunction):
    def open(self, runtime_context: RuntimeContext) -> None:
        self.total = runtime_context.get_state(ValueStateDescriptor("total", Types.LONG()))

    def process_element(self, value: tuple[str, int], ctx: KeyedProcessFunction.Context) -> Iterator[tuple[str, int]]:
        customer, amount = value
        total = (self.total.value() or 0) + amount
        self.total.update(total)
        yield customer, total


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
orders = env.from_collection(ORDERS, type_info=ORDER)
totals = orders.key_by(lambda order: order[0], key_type=Types.STRING()).process(RunningTotal(), output_type=ORDER)
totals.print()
env.execute("running totals")

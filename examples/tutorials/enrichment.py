"""Adds exchange rates to payments: the rates are broadcast, and a payment waits until its rate is known.

python examples/tutorials/enrichment.py
"""

from collections.abc import Iterator

from tidegate.common import Types
from tidegate.datastream import KeyedBroadcastProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.state import ListState, ListStateDescriptor, MapStateDescriptor

Payment = tuple[str, str, float]
Rate = tuple[str, float]

PAYMENTS = [("o1", "USD", 100.0), ("o2", "EUR", 40.0), ("o3", "JPY", 9_000.0), ("o4", "USD", 7.0)]
RATES = [("EUR", 1.0), ("USD", 0.92), ("JPY", 0.006)]  # euros for one unit

PAYMENT = Types.TUPLE([Types.STRING(), Types.STRING(), Types.DOUBLE()])
RATE = Types.TUPLE([Types.STRING(), Types.DOUBLE()])
KNOWN = MapStateDescriptor("rates", Types.STRING(), Types.DOUBLE())
WAITING = ListStateDescriptor("waiting", PAYMENT)


def in_euros(payment: Payment, rate: float) -> str:
    order, currency, amount = payment
    return f"{order}: {amount:.2f} {currency} are {amount * rate:.2f} EUR"


class AddRate(KeyedBroadcastProcessFunction[Payment, Rate, str, str]):
    """The payments are keyed by currency, so the waiting payments of a currency are together."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self.waiting = runtime_context.get_list_state(WAITING)

    def process_element(self, value: Payment, ctx: KeyedBroadcastProcessFunction.ReadOnlyContext) -> Iterator[str]:
        rate = ctx.get_broadcast_state(KNOWN).get(ctx.get_current_key())
        if rate is None:
            self.waiting.add(value)
        else:
            yield in_euros(value, rate)

    def process_broadcast_element(self, value: Rate, ctx: KeyedBroadcastProcessFunction.Context) -> Iterator[str]:
        currency, rate = value
        ctx.get_broadcast_state(KNOWN).put(currency, rate)
        released: list[Payment] = []

        def release(key: str, waiting: ListState[Payment]) -> None:
            if key == currency:
                released.extend(waiting.get())
                waiting.clear()

        ctx.apply_to_keyed_state(WAITING, release)
        for payment in released:
            yield in_euros(payment, rate)


env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
payments = env.from_collection(PAYMENTS, type_info=PAYMENT).key_by(lambda payment: payment[1], key_type=Types.STRING())
rates = env.from_collection(RATES, type_info=RATE).broadcast(KNOWN)
payments.connect(rates).process(AddRate(), output_type=Types.STRING()).uid("add-rate").print()
env.execute("enrichment")

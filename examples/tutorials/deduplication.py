"""Writes each order into PostgreSQL once, although its sender repeats messages.

python examples/tutorials/deduplication.py postgresql://USER:PASSWORD@HOST:5432/DATABASE

Needs the extra postgresql: pip install 'tidegate[postgresql]'. The program makes the table orders if it is missing.
"""

import sys
from collections.abc import Iterator

import psycopg

from tidegate.common import Time, Types
from tidegate.datastream import KeyedProcessFunction, RuntimeContext, StreamExecutionEnvironment
from tidegate.datastream.connectors.postgresql import PostgreSqlSink, Table
from tidegate.datastream.state import StateTtlConfig, ValueStateDescriptor

# Id of the message, customer, cents. m2 and m1 arrive twice
MESSAGES = [("m1", "ann", 250), ("m2", "bob", 90), ("m2", "bob", 90), ("m3", "ann", 10), ("m1", "ann", 250)]
ORDER = Types.TUPLE([Types.STRING(), Types.STRING(), Types.LONG()])


class First(KeyedProcessFunction[tuple[str, str, int], tuple[str, str, int], str]):
    """Passes the first message with an id. Ids are forgotten after a day without a repetition."""

    def open(self, runtime_context: RuntimeContext) -> None:
        seen = ValueStateDescriptor("seen", Types.BOOLEAN())
        seen.enable_time_to_live(StateTtlConfig.new_builder(Time.days(1)).update_ttl_on_read_and_write().build())
        self.seen = runtime_context.get_state(seen)

    def process_element(
        self, value: tuple[str, str, int], ctx: KeyedProcessFunction.Context
    ) -> Iterator[tuple[str, str, int]]:
        if not self.seen.value():
            self.seen.update(True)
            yield value


def run(url: str) -> None:
    env = StreamExecutionEnvironment.get_execution_environment()
    env.set_parallelism(2)
    env.enable_checkpointing(1_000)
    (
        env.from_collection(MESSAGES, type_info=ORDER)
        .key_by(lambda message: message[0], key_type=Types.STRING())
        .process(First(), output_type=ORDER)
        .uid("first")
        .sink_to(PostgreSqlSink(url, Table("orders", ["id", "customer", "cents"])))
        .uid("orders")
    )
    env.execute("deduplication")


if len(sys.argv) != 2:
    sys.exit(__doc__)
with psycopg.connect(sys.argv[1], autocommit=True) as connection:
    connection.execute("CREATE TABLE IF NOT EXISTS orders (id text, customer text, cents bigint)")
run(sys.argv[1])
with psycopg.connect(sys.argv[1]) as connection:
    for row in connection.execute("SELECT id, customer, cents FROM orders ORDER BY id"):
        print(*row)

"""A real job whose names, keys, states and exceptions are markup.

``python -m tests.web.hostile_job DIRECTORY`` runs it for ever.
"""

from __future__ import annotations

import sys
import time
from typing import Any

from tests.incidents import programs
from tests.incidents.programs import arriving
from tests.sinks import LedgerSink
from tests.web.shown_data import HOSTILE
from tidegate.common import Types
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.functions import KeyedProcessFunction, RuntimeContext
from tidegate.datastream.state import ValueStateDescriptor


class Hostile(KeyedProcessFunction):
    """Keeps markup as state, and fails with markup two seconds after each start."""

    def open(self, runtime_context: RuntimeContext) -> None:
        self._started = time.monotonic()
        self._kept: Any = runtime_context.get_state(ValueStateDescriptor("kept", Types.STRING()))

    def process_element(self, value: Any, ctx: Any) -> Any:
        self._kept.update(HOSTILE)
        if time.monotonic() - self._started > 2:
            raise ValueError(HOSTILE)
        yield list(value)


def hostile(env: StreamExecutionEnvironment, directory: str) -> None:
    keyed = arriving(env, 100).key_by(lambda record: f"{HOSTILE}{record[1] % 3}", key_type=Types.STRING())
    kept = keyed.process(Hostile()).name(HOSTILE).uid("kept")
    kept.sink_to(LedgerSink(f"{directory}/out")).name(f"{HOSTILE} sink").uid("ledger")


if __name__ == "__main__":
    name = HOSTILE
    programs.PROGRAMS[name] = hostile
    programs.KEYS[name] = {"restart_strategy.type": "fixed-delay"}
    programs.run(name, sys.argv[1], {"tidegate.job-id": "hostile"})

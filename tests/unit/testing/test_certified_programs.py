"""Right programs, those of tests/compat/differential, have no finding."""

from __future__ import annotations

import pytest

from tests.compat.differential import programs
from tests.compat.differential.catalog import PROGRAMS
from tests.programs import program_of
from tidegate.common import Configuration
from tidegate.connectors.values.sinks import DiscardingSink
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.testing.certify.certifier import Certifier
from tidegate.testing.certify.findings import Report
from tidegate.testing.certify.prepared import prepare

assert programs, "imported for its catalog"

REMEMBER = {
    "an_object_inside_that_the_function_keeps",
    "an_object_of_a_class_of_the_user",
    "an_object_the_function_keeps",
    "closures_with_memory",
    "kept_objects_sent_to_another_task",
    "kept_objects_with_timestamps",
}
"""Programs that keep something outside of state, on purpose."""
QUICK = (
    "tumbling_windows_listed",
    "timers_at_the_end_of_input",
    "keyed_connected_streams_share_state_and_timers",
    "rules_are_broadcast_beside_keyed_records",
    "map_state",
)


def certified(name: str, schedules: int) -> Report:
    found = PROGRAMS[name]
    env = StreamExecutionEnvironment(Configuration.from_dict({}))
    env.set_parallelism(found.parallelisms[0])
    found.build(env).sink_to(DiscardingSink())
    certifier = Certifier(prepare(program_of(env), {}), most=schedules, seconds=100)
    certifier.reference()
    return certifier.run()


@pytest.mark.parametrize("name", QUICK)
def test_right_program_has_no_finding(name: str) -> None:
    report = certified(name, 5)
    assert (report.findings, report.schedules) == ([], 5)


def right_programs() -> list[str]:
    every = {n: p for n, p in PROGRAMS.items() if not p.runs_itself and not p.fails_with and "STREAMING" in p.modes}
    slow = {name for name in every if "call" in name}  # they wait for real time
    return sorted(set(every) - REMEMBER - slow)


@pytest.mark.slow
@pytest.mark.parametrize("name", right_programs())
def test_every_right_program_has_no_finding(name: str) -> None:
    assert certified(name, 20).findings == []

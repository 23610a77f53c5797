"""What all tests share: markers by folder, and one Spark session for those that need one."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis
import pytest

from tests.simulation.executor import Simulated, simulated_environment
from tidegate.base import former_names
from tidegate.common import configuration, global_configuration

hypothesis.settings.register_profile("tidegate", deadline=None)  # a busy machine is no failure
hypothesis.settings.load_profile("tidegate")

HERE = Path(__file__).parent
_FOLDER_MARKERS = {"integration": "spark", "crash": "crash"}
FAULT_DIRECTORY = "TIDEGATE_SWITCHED_FAULTS"

# What a terminal shows depends on these: the same for everybody, whether a person or a CI run starts the tests.
for _name in ("CI", "NO_COLOR", "FORCE_COLOR", "COLUMNS", "LINES"):
    os.environ.pop(_name, None)
os.environ["TERM"] = "xterm"
# Processes that tests start, and Spark's workers, import this package too.
os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE.parent), *filter(None, [os.environ.get("PYTHONPATH")])])


@pytest.fixture(scope="session", autouse=True)
def _home(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Jobs of tests are not registered among those of the user; also not by the drivers that tests start."""
    os.environ["TIDEGATE_HOME"] = str(tmp_path_factory.mktemp("home"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            marker = _FOLDER_MARKERS.get(item.path.relative_to(HERE).parts[0])
            if marker is not None:
                item.add_marker(marker)
            slow = item.get_closest_marker("slow") and not item.get_closest_marker("timeout")
            if marker == "crash" or slow:  # JVMs, or schedules by the thousand; a busy machine is no failure
                item.add_marker(pytest.mark.timeout(3_600))


@pytest.fixture(autouse=True)
def _as_a_new_process() -> Iterator[None]:
    """What a process reports once, and what ``tidegate run`` sets in it: every test begins without it."""
    configuration.noticed.clear()
    former_names.noticed.clear()
    global_configuration.announced.clear()
    global_configuration.set_dynamic_properties({})
    arguments, path = list(sys.argv), list(sys.path)
    yield
    sys.argv, sys.path[:] = arguments, path


@pytest.fixture
def simulated(tmp_path: Path) -> Simulated:
    """``simulated(seed=1, **keys)``: an environment in the test's directory whose programs run on the simulated engine."""
    return partial(simulated_environment, tmp_path)


@pytest.fixture(scope="session")
def fault_directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where faults for the Python workers of the session are switched on (integration/fault_switch.py)."""
    return tmp_path_factory.mktemp("faults")


@pytest.fixture(scope="session")
def spark(fault_directory: Path) -> Iterator[Any]:
    """The Spark context all tests run in, with the settings jobs get without one. Two cores, tasks are tried four times."""
    from tidegate.spark.pyspark_internals import is_lost
    from tidegate.spark.session import spark_context

    created = spark_context(
        {
            "spark.master": "local[2,4]",
            "spark.executorEnv.TIDEGATE_FAULT_HOOK": "tests.integration.fault_switch:hook",
            f"spark.executorEnv.{FAULT_DIRECTORY}": str(fault_directory),
        }
    )
    yield created
    if not is_lost(created):  # a JVM that has died meanwhile has nothing to stop: whoever needed it got another
        created.stop()

"""What an environment holds, for tests of programs that are built and not run."""

from __future__ import annotations

from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.graph.transformation import Program, Transformation


def program_of(env: StreamExecutionEnvironment, name: str | None = None) -> Program:
    """The program as ``execute`` hands it to the executor."""
    return env._program(name)


def transformations_of(env: StreamExecutionEnvironment) -> list[Transformation]:
    """All operators so far, in the order in which the program added them."""
    return list(env._registry.values())


def configuration_of(env: StreamExecutionEnvironment) -> Configuration:
    """What the environment reads its keys from."""
    return env._configuration

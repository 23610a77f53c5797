"""``tidegate debug CHECKPOINT --program FILE``: what is behind a checkpoint, run by the program that is there now."""

from __future__ import annotations

from tidegate.cli import explain as explaining
from tidegate.cli.outcome import say
from tidegate.cli.script import run_script
from tidegate.common.errors import ProgramError
from tidegate.common.global_configuration import set_dynamic_properties
from tidegate.common.options import TARGET
from tidegate.datastream.executor import register_executor
from tidegate.graph.transformation import Program
from tidegate.runtime.replay import Stopped
from tidegate.runtime.replay_checkpoint import End, replay_behind


def replay_program(script: str, path: str, directory: str, stopped: Stopped, most: int) -> None:
    found = replay_behind(_built(script), path, directory, stopped, most)
    if found.end is not End.FAILED:
        say(f"no failure in {found.rounds} rounds with {found.records:,} records: {found.end.value}")


def _built(script: str) -> Program:
    """The program runs up to its first execute()."""
    set_dynamic_properties({TARGET.key: explaining.TARGET})
    register_executor(explaining.TARGET, explaining.ExplainingExecutor)
    try:
        run_script(script, [])
    except explaining.Built as built:
        return built.program
    raise ProgramError("debug needs a program that comes to execute()", where=script, found="it ended before")

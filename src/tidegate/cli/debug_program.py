"""``tidegate debug CHECKPOINT --program FILE``: what is behind a checkpoint, run by the program that is there now."""

from __future__ import annotations

from tidegate.base.counts import count
from tidegate.cli.explain import built
from tidegate.cli.outcome import say
from tidegate.runtime.replay import Stopped
from tidegate.runtime.replay_checkpoint import End, replay_behind


def replay_program(script: str, path: str, directory: str, stopped: Stopped, most: int) -> None:
    found = replay_behind(built(script, [], {}, asks="debug"), path, directory, stopped, most)
    if found.end is not End.FAILED:
        say(f"no failure in {count(found.rounds, 'round')} with {count(found.records, 'record')}: {found.end.value}")

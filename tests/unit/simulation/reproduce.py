"""Run one case of the simulation again and show what happens.

``python -m tests.unit.simulation.reproduce keyed_count 3 1:C6.published@2=crash``.

The line a failing test prints is the arguments. With ``-v`` every fault point that is passed is shown.
"""

from __future__ import annotations

import logging
import sys
import tempfile
from typing import Any

from tests.simulation.lives import Life
from tests.unit.simulation.cases import Case, run_case


def main(arguments: list[str]) -> None:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    words = [word for word in arguments if word != "-v"]
    if len(words) < len(arguments):
        Life.at_point = _shown(Life.at_point)  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(dir="/dev/shm") as root:
        simulation = run_case(Case.parse(words), root)
    for life in simulation.lives:
        outcome = "finished" if life.finished else "crashed" if life.crashed else repr(life.error)
        print(f"life {life.number}: {outcome}, {life.starts} starts, {life.rounds} rounds, fired {life.fired}")


def _shown(at_point: Any) -> Any:
    def shown(life: Life, name: str, where: dict[str, Any]) -> None:
        count = life.passed["*"] + 1
        print(
            life.number, count, life.engine.inside.value, name, {key: str(value)[-70:] for key, value in where.items()}
        )
        at_point(life, name, where)

    return shown


if __name__ == "__main__":
    main(sys.argv[1:])

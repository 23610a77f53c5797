"""Run random programs on one engine and compare with the model.

``python -m tests.compat.random_programs.run FIRST LAST [--parallelism N]``.

DIFFERENTIAL_API names the package: ``pyflink`` or ``tidegate`` (on Spark). ``--together`` of them run in one job and
process: PyFlink leaves some hundred threads behind for each of its jobs. Programs that ``known_differences.json`` names say
nothing about the model, and are left out on PyFlink unless one is asked for alone. The exit code tells whether another differs.
With one seed (``run 4711 4711``) the program, and what is missing and what is too much of its result, is printed.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compat.random_programs.api import ROOT, Configuration, StreamExecutionEnvironment
from tests.compat.random_programs.generator import RandomProgram, generate


def settings(directory: str) -> dict[str, str]:
    if ROOT == "pyflink":
        return {"rest.bind-port": "0", "taskmanager.numberOfTaskSlots": "4", "python.fn-execution.bundle.time": "100"}
    return {
        "execution.checkpointing.dir": f"{directory}/checkpoints",
        "tidegate.state.local-dir": f"{directory}/local",
        "spark.master": "local[2,4]",
    }


def results(programs: Sequence[RandomProgram], env: Any) -> list[str]:
    """Of all the programs in one job, sorted."""
    streams = [stream for program in programs for stream in program.build(env)]
    union = streams[0].union(*streams[1:]) if len(streams) > 1 else streams[0]
    with union.execute_and_collect() as found:
        return sorted(found)


def differences(program: RandomProgram, found: Sequence[str]) -> str:
    """Empty if the program's own lines in ``found`` are those of the model; else a text that reproduces the difference."""
    own = Counter(line for line in found if line.startswith(f"{program.seed}."))
    expected = Counter(program.expected())
    if own == expected:
        return ""
    lines = [f"- {line} (x{n})" for line, n in sorted((expected - own).items())[:20]]
    lines += [f"+ {line} (x{n})" for line, n in sorted((own - expected).items())[:20]]
    command = f"DIFFERENTIAL_API={ROOT} python -m tests.compat.random_programs.run {program.seed} {program.seed}"
    return "\n".join([str(program), "- only the model gives, + only the engine:", *lines, f"again: {command}"])


def environment(directory: str, parallelism: int) -> Any:
    configuration = Configuration()
    for key, value in settings(directory).items():
        configuration.set_string(key, value)
    configuration.set_string("restart-strategy.type", "none")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(parallelism)
    return env


@dataclass(frozen=True)
class Difference:
    """``varies``: the engine itself gives one result and then another."""

    seed: int
    text: str
    varies: bool = False


def run(programs: Sequence[RandomProgram], parallelism: int) -> list[Difference]:
    with tempfile.TemporaryDirectory(prefix="random-programs-") as directory:
        try:
            found = results(programs, environment(directory, parallelism))
        except Exception as error:
            if len(programs) > 1:  # which of them?
                return [difference for program in programs for difference in run([program], parallelism)]
            causes = [line for line in str(error).splitlines() if "Caused by" in line] or [str(error)]
            return [Difference(programs[0].seed, f"{programs[0]}\nfailed: {causes[-1]}")]
    return [
        Difference(program.seed, text, varies(program, text, parallelism))
        for program in programs
        if (text := differences(program, found))
    ]


def varies(program: RandomProgram, text: str, parallelism: int) -> bool:
    """Whether the engine itself gives something else the next time, of a program whose result depends on nothing but its records:
    then it is wrong, and says nothing about the model."""
    for _ in range(6):
        with tempfile.TemporaryDirectory(prefix="random-programs-") as directory:
            if differences(program, results([program], environment(directory, parallelism))) != text:
                return True
    return False


def known_differences() -> dict[int, str]:
    """Why a program says nothing about the model on PyFlink, by seed."""
    if ROOT != "pyflink":
        return {}
    text = Path(__file__).with_name("known_differences.json").read_text()
    return {int(seed): reason for seed, reason in json.loads(text).items()}


def told(found: Sequence[Difference]) -> None:
    for difference in found:
        print(difference.text, end="\n\n")
        if difference.varies:
            print(f"program {difference.seed}: {ROOT} gives one result and then another", end="\n\n", flush=True)


def run_portions(first: int, last: int, parallelism: int, together: int) -> list[Difference]:
    """Each portion in a process of its own, which tells what differs."""
    started, found = time.monotonic(), list[Difference]()
    options = ["--parallelism", str(parallelism), "--together", str(together)]
    for begin in range(first, last + 1, together):
        end = min(begin + together - 1, last)
        with tempfile.NamedTemporaryFile(mode="r", prefix="random-programs-") as file:
            command = [
                sys.executable,
                "-m",
                "tests.compat.random_programs.run",
                str(begin),
                str(end),
                *options,
                "--to",
                file.name,
            ]
            if subprocess.run(command, check=False).returncode not in (0, 1):
                sys.exit(f"programs {begin} to {end} came to no end: {' '.join(command)}")
            found += [Difference(**fields) for fields in json.load(file)]
        passed = time.monotonic() - started
        print(f"{end - first + 1} of {last - first + 1}: {len(found)} differ, {passed:.0f} s", flush=True)
    return found


def summary(first: int, last: int, found: Sequence[Difference], left_out: dict[int, str]) -> str:
    new = [str(difference.seed) for difference in found if not difference.varies]
    varying = [str(difference.seed) for difference in found if difference.varies]
    lines = [f"programs {first} to {last} on {ROOT}: {len(new)} differ from the model: {', '.join(new) or 'none'}"]
    lines += [f"one result and then another: {', '.join(varying)}"] * bool(varying)
    lines += [f"left out: {seed}, {reason}" for seed, reason in left_out.items()]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--together", type=int, default=10)
    parser.add_argument("--to", type=Path, help="a file for what differs, as JSON, instead of a summary")
    arguments = parser.parse_args()
    first, last, together = arguments.first, arguments.last, arguments.together
    alone = first == last and arguments.to is None
    left_out = {seed: why for seed, why in known_differences().items() if first <= seed <= last and not alone}
    if last - first >= together:
        found = run_portions(first, last, arguments.parallelism, together)
    else:
        programs = [generate(seed) for seed in range(first, last + 1) if seed not in left_out]
        found = run(programs, arguments.parallelism) if programs else []
        told(found)
    if arguments.to is not None:
        arguments.to.write_text(json.dumps([vars(difference) for difference in found]))
    else:
        print(summary(first, last, found, left_out), flush=True)
    return 0 if all(difference.varies for difference in found) else 1


if __name__ == "__main__":
    sys.exit(main())

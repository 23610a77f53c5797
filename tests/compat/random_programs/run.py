"""Run random programs on one engine and compare with the model: ``python -m random_programs.run FIRST LAST [--parallelism N]``.

DIFFERENTIAL_API names the package: ``pyflink`` or ``tidegate`` (on Spark). ``--together`` of them run in one job and
process: PyFlink leaves some hundred threads behind for each of its jobs.
With one seed (``run 4711 4711``) the program, and what is missing and what is too much of its result, is printed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from random_programs.api import ROOT, Configuration, StreamExecutionEnvironment
from random_programs.generator import RandomProgram, generate


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
    command = (
        f"DIFFERENTIAL_API={ROOT} PYTHONPATH=tests/compat python -m random_programs.run {program.seed} {program.seed}"
    )
    return "\n".join([str(program), "- only the model gives, + only the engine:", *lines, f"again: {command}"])


def environment(directory: str, parallelism: int) -> Any:
    configuration = Configuration()
    for key, value in settings(directory).items():
        configuration.set_string(key, value)
    configuration.set_string("restart-strategy.type", "none")
    env = StreamExecutionEnvironment.get_execution_environment(configuration)
    env.set_parallelism(parallelism)
    return env


def run(programs: Sequence[RandomProgram], parallelism: int) -> list[str]:
    """What differs, a text for each program."""
    with tempfile.TemporaryDirectory(prefix="random-programs-") as directory:
        try:
            found = results(programs, environment(directory, parallelism))
        except Exception as error:
            if len(programs) > 1:  # which of them?
                return [text for program in programs for text in run([program], parallelism)]
            causes = [line for line in str(error).splitlines() if "Caused by" in line] or [str(error)]
            return [f"{programs[0]}\nfailed: {causes[-1]}"]
    return [
        text for program in programs if (text := differences(program, found)) and not varies(program, text, parallelism)
    ]


def varies(program: RandomProgram, text: str, parallelism: int) -> bool:
    """Whether the engine itself gives something else the next time, of a program whose result depends on nothing but its records:
    then it is wrong, and says nothing about the model."""
    for _ in range(6):
        with tempfile.TemporaryDirectory(prefix="random-programs-") as directory:
            if differences(program, results([program], environment(directory, parallelism))) != text:
                print(f"program {program.seed}: {ROOT} gives one result and then another", flush=True)
                return True
    return False


def run_portions(first: int, last: int, parallelism: int, together: int) -> int:
    """How many portions have programs that differ; each portion in a process of its own, which prints them."""
    started, wrong = time.monotonic(), 0
    for begin in range(first, last + 1, together):
        end = min(begin + together - 1, last)
        options = ["--parallelism", str(parallelism), "--together", str(together)]
        command = [sys.executable, "-m", "random_programs.run", str(begin), str(end), *options]
        wrong += subprocess.run(command, check=False).returncode != 0
        passed = time.monotonic() - started
        print(f"{end - first + 1} of {last - first + 1}: {wrong} portions differ, {passed:.0f} s", flush=True)
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("first", type=int)
    parser.add_argument("last", type=int)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--together", type=int, default=10)
    arguments = parser.parse_args()
    first, last, together = arguments.first, arguments.last, arguments.together
    if last - first >= together:
        return 1 if run_portions(first, last, arguments.parallelism, together) else 0
    wrong = run([generate(seed) for seed in range(first, last + 1)], arguments.parallelism)
    print(*wrong, sep="\n\n", end="\n" * bool(wrong))
    print(f"programs {first} to {last} on {ROOT}: {len(wrong)} differ from the model", flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs programs one after the other in this process: ``run_examples.py pyflink|tidegate MARK PROGRAM...``.

A line with the mark and the program stands before what each of them prints.
"""

from __future__ import annotations

import runpy
import sys
from pathlib import Path


def run(engine: str, program: str) -> None:
    if engine == "tidegate":
        from tidegate.cli.main import app

        app(["run", "--pyflink", "--master", "local[2]", program], standalone_mode=False)
    else:
        sys.argv = [program]
        runpy.run_path(program, run_name="__main__")


if __name__ == "__main__":
    sys.path.remove(str(Path(__file__).parent))  # modules of the tests are none of the program's
    engine, mark, *programs = sys.argv[1:]
    for program in programs:
        print(f"{mark}{program}", flush=True)
        run(engine, program)
        sys.stdout.flush()

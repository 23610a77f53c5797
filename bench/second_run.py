"""From the shell to the end of a small program: the first run in a development session, later runs, and runs without a session.

Run: python -m bench.second_run [JOB.py]. Each later run has an edited program, as when somebody writes it.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = 5
TIDEGATE = str(Path(sys.executable).with_name("tidegate"))
EXAMPLE = Path(__file__).parents[1] / "examples" / "keyed_totals.py"


def timed(place: Path, environment: dict[str, str], *command: str) -> float:
    started = time.monotonic()
    done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    return time.monotonic() - started


def main() -> None:
    text = Path(sys.argv[1]).read_text() if sys.argv[1:] else EXAMPLE.read_text()
    with tempfile.TemporaryDirectory() as directory:
        place = Path(directory)
        job = place / "job.py"
        job.write_text(text)
        environment = {**os.environ, "TIDEGATE_HOME": str(place / "home")}
        command = [TIDEGATE, "dev", "session"]
        with subprocess.Popen(command, cwd=place, env=environment, stdout=subprocess.PIPE, text=True) as session:
            try:
                assert session.stdout is not None
                session.stdout.readline()
                first = timed(place, environment, TIDEGATE, "dev", "run", "job.py")
                later, without = [], []
                for number in range(RUNS):
                    job.write_text(f"{text}\n# edit {number}\n")
                    later.append(timed(place, environment, TIDEGATE, "dev", "run", "job.py"))
                for _ in range(RUNS):
                    without.append(timed(place, environment, TIDEGATE, "run", "job.py"))
            finally:
                session.terminate()
    load = os.getloadavg()[0]
    print(f"first run in the session {first:.2f} s, load {load:.1f}")
    for label, seconds in (("later runs", later), ("tidegate run", without)):
        shown = " ".join(f"{one:.2f}" for one in sorted(seconds))
        print(f"{label}: median {statistics.median(seconds):.2f} s of {shown}")


if __name__ == "__main__":
    main()

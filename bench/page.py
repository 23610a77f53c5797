"""What open pages cost a job: its throughput by processor time, with ten pages open and with none, in pairs.

``python -m bench.page [PAIRS] [SECONDS]``. The job runs on Spark; the pages read the events of ``tidegate run --web``, whose server
is in the driver itself: the worst case. The processor time is that of the driver, its JVM and its workers.
"""

from __future__ import annotations

import http.client
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import psutil

PROGRAM = """
import sys
from tidegate.common import Types, WatermarkStrategy
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.datagen import DataGeneratorSource

env = StreamExecutionEnvironment.get_execution_environment().set_parallelism(2)
source = DataGeneratorSource(lambda index: (index % 1000, index))
numbers = env.from_source(source, WatermarkStrategy.no_watermarks(), "numbers").uid("numbers")
totals = numbers.key_by(lambda pair: pair[0], key_type=Types.LONG()).sum(1).uid("totals")
totals.add_sink(lambda value: None).uid("out")
env.execute("bench")
"""
PAGES = 10


class Job:
    """The job in a process of its own, with its page."""

    def __init__(self, place: Path) -> None:
        self.place = place
        (place / "job.py").write_text(PROGRAM)
        keys = {
            "tidegate.job-id": "bench",
            "execution.checkpointing.dir": f"{place}/ck",
            "execution.checkpointing.interval": "2 s",
            "tidegate.round.target-time": "500 ms",
            "spark.ui.enabled": "false",
        }
        options = [f"-D{key}={value}" for key, value in keys.items()]
        command = [sys.executable, "-m", "tidegate.cli", "run", "--web=0", "--master", "local[2]", *options, "job.py"]
        self._log = place / "log"
        environment = {**os.environ, "TIDEGATE_HOME": str(place / "home")}
        with open(self._log, "wb") as log:
            self.process = subprocess.Popen(command, cwd=place, stdout=log, stderr=log, env=environment)
        self.host, path = self._address()
        self.cookie = str(self._exchange(path)[1]["set-cookie"]).partition(";")[0]

    def _address(self) -> tuple[str, str]:
        while self.process.poll() is None:
            found = re.search(r"http://(localhost:\d+)(/tidegate/login\S+)", self._log.read_text(errors="replace"))
            if found:
                return found.group(1), found.group(2)
            time.sleep(0.1)
        raise SystemExit(self._log.read_text())

    def _exchange(self, path: str) -> tuple[bytes, Any]:
        connection = http.client.HTTPConnection(self.host, timeout=60)
        connection.request("GET", path, headers={"Cookie": getattr(self, "cookie", "")})
        answer = connection.getresponse()
        content = answer.read()
        connection.close()
        return content, answer.headers

    def records(self) -> int:
        return int(json.loads(self._exchange("/tidegate/page/jobs/bench")[0])["details"]["totals"]["records"])

    def seconds(self) -> float:
        """Return the processor time of the driver and all processes below it."""
        total = 0.0
        root = psutil.Process(self.process.pid)
        for each in (root, *root.children(recursive=True)):
            try:
                times = each.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total

    def end(self) -> None:
        self.process.terminate()
        self.process.wait()


class Pages:
    """Open pages. They read all that comes, as a browser does."""

    def __init__(self, job: Job, count: int) -> None:
        self.events, self._connections = 0, []
        for number in range(count):
            connection = http.client.HTTPConnection(job.host, timeout=60)
            path = "/tidegate/page/events" if number % 2 else "/tidegate/page/jobs/bench/events"
            connection.request("GET", path, headers={"Cookie": job.cookie})
            self._connections.append(connection)
            threading.Thread(target=self._read, args=(connection.getresponse(),), daemon=True).start()

    def _read(self, answer: http.client.HTTPResponse) -> None:
        try:
            while line := answer.readline():
                self.events += line.startswith(b"event:")
        except (OSError, ValueError, AttributeError, http.client.HTTPException):
            pass

    def close(self) -> None:
        for connection in self._connections:
            if connection.sock is not None:
                connection.sock.shutdown(2)
            connection.close()


def measured(job: Job, pages: int, seconds: float) -> tuple[float, int]:
    """Return records for each second of processor time, and how many events all pages got."""
    shown = Pages(job, pages)
    time.sleep(1.0)
    records, used = job.records(), job.seconds()
    time.sleep(seconds)
    result = (job.records() - records) / (job.seconds() - used)
    shown.close()
    return result, shown.events


def main(pairs: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        job = Job(Path(place))
        try:
            while job.records() < 1_000_000:  # Spark and the workers are warm
                time.sleep(0.2)
            ratios = []
            for number in range(pairs):
                first = (0, PAGES) if number % 2 else (PAGES, 0)
                found = {pages: measured(job, pages, seconds) for pages in first}
                ratios.append(found[PAGES][0] / found[0][0])
                print(
                    f"pair {number + 1}: {found[0][0]:,.0f} records/s of processor without pages, "
                    f"{found[PAGES][0]:,.0f} with {PAGES} ({found[PAGES][1]} events): {ratios[-1]:.3f}",
                    flush=True,
                )
            print(f"median of {pairs} pairs: {statistics.median(ratios):.3f}, mean {statistics.mean(ratios):.3f}")
        finally:
            job.end()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, float(sys.argv[2]) if len(sys.argv) > 2 else 10.0)

"""What open pages cost a job: its throughput by processor time, with ten pages open and with none, in pairs.

``python -m bench.page [PAIRS] [SECONDS]``. The job runs on Spark; the pages read the events of ``tidegate run --web``, whose server
is in the driver itself: the worst case. The processor time is that of the driver, its JVM and its workers.

On a machine that others use, the throughput of two measurements differs by far more than the pages cost. So the last line says what
the pages take directly: the driver's own process, without JVM and workers, uses more processor time while they are open.
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
from typing import Any, NamedTuple

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

    def seconds(self) -> tuple[float, float]:
        """Return the processor time of the driver and all processes below it, and that of the driver alone."""
        root = psutil.Process(self.process.pid)
        own = root.cpu_times()
        total = alone = own.user + own.system
        for each in root.children(recursive=True):
            try:
                times = each.cpu_times()
            except psutil.NoSuchProcess:
                continue
            total += times.user + times.system
        return total, alone

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


class Measured(NamedTuple):
    """``speed``: records for each second of processor time. ``used`` and ``driver``: seconds of processor time a second, of all
    processes and of the driver alone. ``events``: how many all pages got."""

    speed: float
    used: float
    driver: float
    events: int


def measured(job: Job, pages: int, seconds: float) -> Measured:
    shown = Pages(job, pages)
    time.sleep(1.0)
    records, (used, alone), began = job.records(), job.seconds(), time.monotonic()
    time.sleep(seconds)
    read, (used_now, alone_now) = job.records() - records, job.seconds()
    passed = time.monotonic() - began
    shown.close()
    return Measured(read / (used_now - used), (used_now - used) / passed, (alone_now - alone) / passed, shown.events)


def main(pairs: int, seconds: float) -> None:
    with tempfile.TemporaryDirectory(prefix="tidegate-bench-") as place:
        job = Job(Path(place))
        try:
            while job.records() < 1_000_000:  # Spark and the workers are warm
                time.sleep(0.2)
            ratios, costs = [], []
            for number in range(pairs):
                first = (0, PAGES) if number % 2 else (PAGES, 0)
                found = {pages: measured(job, pages, seconds) for pages in first}
                without, with_pages = found[0], found[PAGES]
                ratios.append(with_pages.speed / without.speed)
                costs.append((with_pages.driver - without.driver, with_pages.used))
                print(
                    f"pair {number + 1}: {without.speed:,.0f} records/s of processor without pages, {with_pages.speed:,.0f} with "
                    f"{PAGES} ({with_pages.events} events): {ratios[-1]:.3f}; driver {1000 * without.driver:.0f} and "
                    f"{1000 * with_pages.driver:.0f} ms/s of {1000 * with_pages.used:.0f}",
                    flush=True,
                )
            print(f"median of {pairs} pairs: {statistics.median(ratios):.3f}, mean {statistics.mean(ratios):.3f}")
            cost, used = (statistics.median(each) for each in zip(*costs, strict=True))
            print(
                f"the pages cost {1000 * cost:.1f} ms of {1000 * used:.0f} ms a second: throughput {1 - cost / used:.4f}"
            )
        finally:
            job.end()


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 8, float(sys.argv[2]) if len(sys.argv) > 2 else 10.0)

"""A job that is killed: started again until it ends, watched while it runs, audited from outside when it has ended."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from tests.crash.crash_job import KEYS_PER_SPLIT, RECORDS, key_of
from tests.waiting import eventually
from tidegate.testing import kill_hook

HERE = Path(__file__).parent
KILLED = -9
PATIENCE = 240.0
"""Seconds without any sign of life; less than ten pass on a machine of its own."""


class CrashRun:
    """``plan``: entries of the kill hook. Counters continue over all starts, so each entry fires once."""

    def __init__(self, directory: Path, *plan: str, keys: dict[str, Any] | None = None, command: str = "") -> None:
        self.directory, self.plan = directory, plan
        self.kills = directory / "kills"
        self.kills.mkdir()
        self.observer = Observer(directory)
        self.exit_codes: list[int] = []
        self.command = [sys.executable]
        self.tmp = tempfile.mkdtemp(prefix="tg")  # short: paths of sockets are
        self._environment = {
            **os.environ,
            "TIDEGATE_FAULT_HOOK": "tidegate.testing.kill_hook:hook",
            "TIDEGATE_KILL_DIR": str(self.kills),
            "TIDEGATE_KILL_PLAN": ";".join(plan),
            "TIDEGATE_MASTER": "local[2,4]",
            "CRASH_JOB_KEYS": json.dumps(keys or {}),
            "CRASH_JOB_COMMAND": command,
            "TMPDIR": self.tmp,
        }

    def resume(self, path: Path, *, parallelism: int) -> int:
        """The job from a savepoint, to its end."""
        keys = json.dumps({"execution.state-recovery.path": str(path)})
        self._environment |= {
            "CRASH_JOB_KEYS": keys,
            "CRASH_JOB_COMMAND": "",
            "CRASH_JOB_PARALLELISM": str(parallelism),
        }
        return self.wait(self.start())

    def lose_machine(self) -> None:
        """All that runs, and all that was kept on the machine itself, is gone; the next driver starts on another."""
        for process in self.processes():
            process.kill()
        eventually(lambda: not self.processes(), "all processes of the job are gone")
        shutil.rmtree(self.directory / "local")
        self.remove_tmp()
        os.mkdir(self.tmp)
        self._environment["CRASH_JOB_HOST"] = "another-host"

    def remove_tmp(self) -> None:
        shutil.rmtree(self.tmp, ignore_errors=True)

    def start(self) -> subprocess.Popen[bytes]:
        with open(self.directory / f"log-{len(list(self.directory.glob('log-*')))}", "wb") as log:
            command = [*self.command, str(HERE / "crash_job.py"), str(self.directory)]
            # A group of its own, as a terminal makes it: a signal sent to that reaches the JVM too.
            return subprocess.Popen(command, stdout=log, stderr=log, env=self._environment, start_new_session=True)

    def wait(self, driver: subprocess.Popen[bytes]) -> int:
        """Until the driver has ended."""
        self.watch(driver, lambda: driver.poll() is not None)
        self.exit_codes.append(driver.returncode)
        return driver.returncode

    def watch(self, driver: subprocess.Popen[bytes], until: Callable[[], bool]) -> None:
        """Look at the output all the time until something has happened; a driver that stands still has failed."""
        signs, since = -1, 0.0
        while not until():
            self.observer.look()
            before, signs = signs, self._signs_of_life()
            since = since if signs == before else time.monotonic()
            if time.monotonic() > since + PATIENCE:
                driver.kill()
                raise AssertionError(f"the driver hangs:\n{self.last_log()}")
            time.sleep(0.05)
        self.observer.look()

    def _signs_of_life(self) -> int:
        """Grows while the job starts and runs: its logs, its fault points, its output."""
        files = [*self.directory.glob("log-*"), *self.kills.iterdir()]
        return sum(path.stat().st_size for path in files) + self.observer.count

    def run(self) -> CrashRun:
        """Start it until it ends well, as whoever supervises it would; at most once more than there are kills."""
        for _ in range(len(self.plan) + 1):
            if self.wait(self.start()) == 0:
                break
        assert self.exit_codes[-1] == 0, f"exit codes {self.exit_codes}\n{self.last_log()}"
        return self

    def last_log(self) -> str:
        logs = sorted(self.directory.glob("log-*"), key=lambda path: int(path.name[4:]))
        return logs[-1].read_text()[-6_000:]

    def fired(self) -> list[str]:
        return kill_hook.fired(self.kills)

    def check(self, exit_codes: list[int] | None = None) -> None:
        """Every kill happened, the output is that of a run without them, and nothing is left behind."""
        assert self.fired() == sorted(self.plan)
        if exit_codes is not None:
            assert self.exit_codes == exit_codes
        self.observer.check_complete()
        self.check_nothing_left()

    def check_nothing_left(self) -> None:
        left = {path.relative_to(self.directory).parts[0] for path in self.directory.rglob(".*") if path.is_file()}
        assert left == set(), f"hidden or temporary files in {left}"
        assert list((self.directory / "transactions" / "open").iterdir()) == []
        job = self.directory / "checkpoints" / "crash"
        kept = {path.relative_to(job).parts[0] for path in job.rglob("*") if path.is_file()}
        assert kept == {"history.json", "view.json", "lease"}
        assert not any(path.is_file() for path in (self.directory / "local").rglob("*"))
        eventually(lambda: not self.processes(), "all processes of the job are gone")

    def kill_jvms(self, driver: int) -> list[int]:
        """The JVMs below a driver; empty if it has none (yet)."""
        try:
            below = [p for p in psutil.Process(driver).children(recursive=True) if "java" in p.name()]
        except psutil.NoSuchProcess:
            return []
        for process in below:
            process.kill()
        return [process.pid for process in below]

    def processes(self) -> list[psutil.Process]:
        """Whatever still runs of the job: drivers, JVMs, Python workers."""
        found = []
        for process in psutil.process_iter():
            try:
                if process.environ().get("TIDEGATE_KILL_DIR") == str(self.kills):
                    found.append(process)
            except (psutil.NoSuchProcess, psutil.AccessDenied, OSError):
                continue
        return found


class Observer:
    """Reads what readers of the sinks see, never the job's own counters. A file that is there stays as it is (I5)."""

    def __init__(self, directory: Path) -> None:
        self._places = [directory / "files", directory / "transactions" / "committed"]
        self._seen: dict[Path, bytes] = {}

    @property
    def count(self) -> int:
        return len(self._seen)

    def look(self) -> None:
        now = {path for place in self._places if place.exists() for path in place.iterdir() if path.name[0] != "."}
        assert not self._seen.keys() - now, f"committed files disappeared: {self._seen.keys() - now}"
        for path in now - self._seen.keys():
            self._seen[path] = path.read_bytes()
            assert self._seen[path].endswith(b"\n"), f"a committed file is cut off: {path}"

    def _lines(self, place: Path) -> list[list[Any]]:
        return [
            [json.loads(line) for line in content.splitlines()]
            for path, content in self._seen.items()
            if path.parent == place
        ]

    def check_complete(self) -> None:
        self.look()
        for path, content in self._seen.items():
            assert path.read_bytes() == content, f"a committed file has changed: {path}"
        files, transactions = (self._lines(place) for place in self._places)
        numbers = Counter(number for part in transactions for number in part)
        assert_equal(numbers, Counter(range(RECORDS)), "numbers in the two-phase-commit sink")
        records = Counter(json.dumps(record) for part in files for record in part)
        assert_equal(records, Counter(json.dumps(record) for record in expected_records()), "records in files")
        for part in files:
            check_order(part)


def assert_equal(found: Counter[Any], expected: Counter[Any], what: str) -> None:
    lost, extra = expected - found, found - expected
    doubled = {record for record in extra if record in expected}
    message = f"{what}: lost {lost.total()}, doubled {len(doubled)}, unknown {len(extra) - len(doubled)}"
    assert not lost and not extra, f"{message}: {list(lost)[:3]} {list(extra)[:3]}"


def expected_records() -> list[dict[str, Any]]:
    """What a plain loop makes of the numbers. The count of a record is its place among those of its key: order included."""
    records: list[dict[str, Any]] = []
    counts: dict[str, int] = defaultdict(int)
    totals: dict[str, int] = defaultdict(int)
    for number in range(RECORDS):
        key = key_of(number)
        counts[key] += 1
        totals[key] += number
        records.append({"key": key, "count": counts[key], "number": number})
    assert len(counts) == 2 * KEYS_PER_SPLIT
    return records + [{"key": key, "count": counts[key], "total": totals[key]} for key in counts]


def check_order(part: list[dict[str, Any]]) -> None:
    """Within a file the records of a key come in their order; its total comes last."""
    last: dict[str, tuple[int, bool]] = {}
    for record in part:
        place = (record["count"], "total" in record)
        assert place > last.get(record["key"], (0, False)), f"out of order: {record}"
        last[record["key"]] = place

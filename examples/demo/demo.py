"""The demo: runs ``orders_job``, kills its driver twice in the middle of a checkpoint, restarts it, and audits the files.

    python examples/demo/demo.py [--orders N] [--rate ORDERS_PER_SECOND] [--plain] [--record FILE]

Exit code 0: nothing lost, nothing doubled. 1: the audit failed, or a kill did not happen. The kills are real: a hook at a fault
point inside Tidegate sends SIGKILL to the driver's own process.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
from audit import Audit, audit
from rich.console import Console
from rich.live import Live
from story import KILLS, Kill, Reader, Story
from view import picture, status_line, verdict

HERE = Path(__file__).parent
KILLED_CHECKPOINT = 4
"""Each attempt that is to be killed gets this far."""
LONGEST_SECONDS = 600
PLAIN_EVERY_SECONDS = 5


class DemoFailed(Exception):
    """What went wrong, and where the log of the process is."""


class Attempt:
    """One start of the job in a process, and session, of its own."""

    def __init__(self, home: Path, number: int, orders: int, rate: float, kill: Kill | None) -> None:
        self.kill, self.log = kill, home / f"driver-{number}.log"
        self._marks = home / f"kill-{number}"
        self._marks.mkdir()
        (home / "work").mkdir(exist_ok=True)
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "attempt.py"), str(home), str(orders), str(rate)],
            stdout=subprocess.PIPE,
            stderr=self.log.open("w"),
            cwd=home / "work",
            env={**os.environ, **self._hook()},
            text=True,
            start_new_session=True,
        )
        self._lines: queue.SimpleQueue[str] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def _hook(self) -> dict[str, str]:
        if self.kill is None:
            return {}
        plan = f"{self.kill.point}@{KILLED_CHECKPOINT}=self"
        hook = "tidegate.testing.kill_hook:hook"
        return {"TIDEGATE_FAULT_HOOK": hook, "TIDEGATE_KILL_DIR": str(self._marks), "TIDEGATE_KILL_PLAN": plan}

    def _listen(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)
        self._process.wait()

    def events(self) -> Iterator[dict[str, object]]:
        """What it has said since the last call."""
        while not self._lines.empty():
            yield json.loads(self._lines.get())

    @property
    def over(self) -> bool:
        return self._process.poll() is not None and self._lines.empty()

    def end(self, story: Story) -> None:
        """It is over: as it should, or ``DemoFailed``."""
        code = self._process.wait()
        fired = (self._marks / "fired-0").read_text() if (self._marks / "fired-0").exists() else ""
        if self.kill is None and code == 0:
            return
        if self.kill is not None and code == -signal.SIGKILL and fired:
            checkpoint = re.search(r"chk-(\d+)|'checkpoint_id': (\d+)", fired)
            number = (checkpoint[1] or checkpoint[2]) if checkpoint else "?"
            story.killed(self.kill, number, story.reader.prepared_orders())
            return
        wanted = "end by itself" if self.kill is None else f"be killed at {self.kill.point}"
        tail = "\n".join(self.log.read_text().splitlines()[-15:])
        raise DemoFailed(
            f"attempt {story.attempt} should {wanted}; its exit code is {code}. End of {self.log}:\n{tail}"
        )

    def clear_away(self) -> None:
        """End whatever is left of its session: the driver, its JVM, Python workers."""
        for pid in psutil.pids():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                if os.getsid(pid) == self._process.pid:
                    os.kill(pid, signal.SIGKILL)
        self._process.wait()


class Screen:
    """Live picture or plain lines, whichever fits where the output goes."""

    def __init__(self, console: Console, story: Story, plain: bool) -> None:
        self._console, self._story = console, story
        self._live = None if plain else Live(console=console, refresh_per_second=8, get_renderable=self._picture)
        self._shown, self._next_line = 0, 0.0

    def _picture(self) -> object:
        return picture(self._story, self._console.width)

    def __enter__(self) -> Screen:
        if self._live is not None:
            self._live.__enter__()
        return self

    def __exit__(self, *failure: object) -> None:
        if self._live is not None:
            self._live.__exit__(None, None, None)

    def update(self) -> None:
        if self._live is not None:
            return
        for seconds, text, _ in list(self._story.events)[self._shown :]:
            print(f"{seconds:6.1f} s  {text}", flush=True)
        self._shown = len(self._story.events)
        if self._story.seconds >= self._next_line:
            print(status_line(self._story), flush=True)
            self._next_line = self._story.seconds + PLAIN_EVERY_SECONDS


def run(home: Path, story: Story, screen: Screen, rate: float) -> None:
    """All attempts: one for each kill, and one that runs to the end."""
    for number, kill in enumerate([*KILLS, None], 1):
        story.begin_attempt()
        attempt = Attempt(home, number, story.orders, rate, kill)
        try:
            follow(attempt, story, screen)
            attempt.end(story)
        finally:
            attempt.clear_away()
            story.look()
            screen.update()


def follow(attempt: Attempt, story: Story, screen: Screen) -> None:
    next_look = 0.0
    while not attempt.over:
        for event in attempt.events():
            story.hear(event)
        if time.monotonic() >= next_look:
            story.look()
            next_look = time.monotonic() + 0.5
        screen.update()
        if story.seconds > LONGEST_SECONDS:
            raise DemoFailed(f"not over after {LONGEST_SECONDS} seconds; see {attempt.log}")
        time.sleep(0.05)


def main() -> int:
    parser = argparse.ArgumentParser(description="Kills a running job twice in mid-checkpoint and audits its output.")
    parser.add_argument("--orders", type=int, default=200_000)
    parser.add_argument("--rate", type=float, default=10_000, help="orders per second")
    parser.add_argument("--plain", action="store_true", help="lines instead of the live picture")
    parser.add_argument("--record", type=Path, help="write what happened to this file, for scripts/draw_pictures.py")
    given = parser.parse_args()
    console = Console()
    home = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
    for other in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(other, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        return play(console, home, given.orders, given.rate, given.plain or not console.is_terminal, given.record)
    except KeyboardInterrupt:
        shutil.rmtree(home, ignore_errors=True)
        console.print("interrupted: processes ended, files removed")
        return 130


def play(console: Console, home: Path, orders: int, rate: float, plain: bool, record: Path | None) -> int:
    story = Story(Reader(home / "output"), orders)
    try:
        with Screen(console, story, plain) as screen:
            run(home, story, screen, rate)
    except DemoFailed as failure:
        console.print(f"FAILED: {failure}", style="bold red", highlight=False, markup=False)
        return 1
    result = audit(home / "output", orders)
    console.print(verdict(result, story))
    console.print(ending(story, home / "output"), highlight=False, soft_wrap=True)
    if record is not None:
        record.write_text(recording(story, result))
    for name in ("state", "spark", "work", "checkpoints"):
        shutil.rmtree(home / name, ignore_errors=True)
    return 0 if result.passed and not story.reader.shrunk else 1


def recording(story: Story, result: Audit) -> str:
    """The run as JSON: what the reader saw when, the kills, the restores, and what the audit counted."""
    facts = {
        "orders": story.orders,
        "killed": story.killed_at,
        "continued": story.continued_at,
        "lost": sum(finding.lost for finding in result.findings),
        "doubled": sum(finding.doubled for finding in result.findings),
        "samples": story.samples,
    }
    parts = [f"{json.dumps(key)}: {json.dumps(value)}" for key, value in facts.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def ending(story: Story, output: Path) -> str:
    starting = story.starting_seconds
    return (
        f"{story.seconds:.0f} seconds: {story.attempt} starts of Python and Spark {starting:.0f}, "
        f"the orders and the audit {story.seconds - starting:.0f}. The files: {output}"
    )


if __name__ == "__main__":
    sys.exit(main())

"""What the demo has seen so far: events of the attempts, kills, and the files a reader finds."""

from __future__ import annotations

import re
import time
from collections import Counter, deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DETAIL = "detail"
"""The style of a note that only the plain view shows: the picture has another place for it."""
STARTING = ("Python starts", "Spark starts", "workers start")
"""What a start consists of, in this order: nothing of it is the job's own."""
STEPS = ["trigger", "cut", "run", "align", "snapshot", "acknowledge", "complete", "commit", "subsume"]


@dataclass(frozen=True)
class Kill:
    """A SIGKILL of the driver. ``point``: a fault point in Tidegate's own code, passed right after step ``after``."""

    point: str
    after: int
    found: str
    meaning: str


KILLS = [
    Kill(
        "C4.before-publish",
        after=6,
        found="state written, files prepared, checkpoint not published",
        meaning="it never happened: its {orders:,} orders are read again",
    ),
    Kill(
        "C6.published",
        after=7,
        found="checkpoint published, its files still hidden",
        meaning="it counts: its {orders:,} orders become visible, none is read again",
    ),
]


@dataclass
class Reader:
    """Looks at the output as any other program would: files without a dot in front are published, and never change again."""

    output: Path
    files: int = 0
    orders: int = 0
    hidden: int = 0
    shrunk: bool = False
    _counted: dict[Path, int] = field(default_factory=dict)

    def look(self) -> None:
        there = [path for path in self.output.rglob("*") if path.is_file()] if self.output.is_dir() else []
        visible = {path for path in there if not path.name.startswith(".")}
        self.shrunk |= not visible.issuperset(self._counted)
        for path in visible - self._counted.keys():
            self._counted[path] = path.read_bytes().count(b"\n") if path.parent.name == "totals" else 0
        self.files, self.hidden = len(visible), len(there) - len(visible)
        self.orders = sum(self._counted.values())

    def prepared_orders(self) -> int:
        """Different orders in hidden files: written, and nobody knows yet whether they will ever be visible."""
        hidden = (self.output / "totals").glob(".*")
        return len({line.partition(",")[0] for path in hidden for line in path.read_text().splitlines()})


@dataclass
class Story:
    """Fed with the JSON lines of the attempts by the parent's loop; shown by ``view``."""

    reader: Reader
    orders: int
    started: float = field(default_factory=time.monotonic)
    attempt: int = 0
    status: str = STARTING[0]
    attempt_began: float = 0.0
    starting_seconds: float = 0.0
    """Spent by all attempts so far before their first round was done."""
    round: int = 0
    rounds: int = 0
    checkpoint: int = 0
    checkpoints: int = 0
    state_bytes: int = 0
    step: int = 0
    kills: list[str] = field(default_factory=list)
    killed_after: int | None = None
    """The step after which the latest kill struck, until the job runs again."""
    explanation: str = ""
    events: deque[tuple[float, str, str]] = field(default_factory=lambda: deque(maxlen=200))
    per_second: Counter[int] = field(default_factory=Counter)
    samples: list[tuple[float, str, int]] = field(default_factory=list)
    """(seconds, status of the job, committed orders) whenever the reader looked."""
    killed_at: list[tuple[float, str]] = field(default_factory=list)
    """(seconds, what it met), and in ``continued_at`` when the next attempt had restored which checkpoint."""
    continued_at: list[tuple[float, int]] = field(default_factory=list)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def note(self, text: str, style: str = "") -> None:
        self.events.append((self.seconds, text, style))

    def begin_attempt(self) -> None:
        self.attempt += 1
        self.status, self.step, self.attempt_began = STARTING[0], 0, self.seconds
        self.note(f"attempt {self.attempt} starts", "bold")
        self.note("  a new process, with the same job id and directory", DETAIL)

    @property
    def is_starting(self) -> bool:
        return self.status in STARTING

    def hear(self, event: dict[str, Any]) -> None:
        if event["event"] == "round":
            self._round(event)
        elif event["event"] == "log":
            self._log(event["text"])
        elif event["event"] == "built":
            self.status = STARTING[1]
        elif event["event"] == "finished":
            self.status = "finished"
            self.note("all orders processed and committed", "green")

    def _round(self, event: dict[str, Any]) -> None:
        if self.is_starting:
            took = self.seconds - self.attempt_began
            self.starting_seconds += took
            self.note(f"runs; the start took {took:.0f} s", "green")
        self.status, self.round, self.killed_after = "running", event["round"], None
        self.rounds += 1
        self.per_second[int(self.seconds)] += event["records"]

    def _log(self, text: str) -> None:
        if match := re.search(r"checkpoint (\d+): step (\d)", text):
            self.step = int(match[2])
            if self.is_starting:  # the first checkpoint is triggered as soon as there is a Spark context
                self.status = STARTING[2]
        if match := re.search(r"checkpoint (\d+): step 7 complete, round \d+, (\d+) bytes, (\d+) ms", text):
            self.checkpoint, self.state_bytes = int(match[1]), int(match[2])
            self.checkpoints += 1
            self.note(f"checkpoint {self.checkpoint} done, {match[3]} ms", "dim")
            if self.is_starting:
                self.note("  most of it is the start of Spark's Python workers", DETAIL)
        elif match := re.search(r"restores checkpoint (\d+) from", text):
            self.note(f"continues from checkpoint {match[1]}", "green")
            self.continued_at.append((round(self.seconds, 1), int(match[1])))

    def killed(self, kill: Kill, checkpoint: str, orders: int) -> None:
        """The process is gone, by the signal it was meant to get and at the point it was meant to be."""
        self.status, self.killed_after = "killed", kill.after
        self.kills.append(
            f"checkpoint {checkpoint}, between step {kill.after} and {kill.after + 1}, {orders:,} orders in hidden files"
        )
        self.explanation = f"{kill.found}; {kill.meaning.format(orders=orders)}"
        self.note(f"SIGKILL in checkpoint {checkpoint}", "bold red")
        self.killed_at.append((round(self.seconds, 1), f"checkpoint {checkpoint}, after step {kill.after} of 9"))
        step, following = STEPS[kill.after - 1], STEPS[kill.after]
        self.note(
            f"  between step {kill.after} ({step}) and {kill.after + 1} ({following}): {self.explanation}", DETAIL
        )

    def look(self) -> None:
        """Let the reader look at the files, and note what it sees."""
        self.reader.look()
        self.samples.append((round(self.seconds, 1), self.status, self.reader.orders))

    def throughput(self, number: int, every: int = 1) -> list[int]:
        """Orders read per second, over the last ``number`` spans of ``every`` seconds that are over."""
        now = int(self.seconds) // every
        spans = range(max(0, now - number), now)
        return [sum(self.per_second[span * every + i] for i in range(every)) // every for span in spans]

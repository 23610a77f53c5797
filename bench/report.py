"""What the bench leaves behind: a Markdown table on the terminal and a JSON file per scenario."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import psutil
from rich.console import Console
from rich.markdown import Markdown

RESULTS = Path(__file__).resolve().parent / "results"


@dataclass(frozen=True)
class Verdict:
    """One target against its measurement. ``at_least`` or at most ``target``; None: not measured."""

    what: str
    measured: float | None
    target: float
    at_least: bool = True

    @property
    def met(self) -> bool | None:
        if self.measured is None:
            return None
        return self.measured >= self.target if self.at_least else self.measured <= self.target

    def row(self) -> list[str]:
        sign = "at least" if self.at_least else "at most"
        found = "not measured" if self.measured is None else f"{self.measured:.2f}"
        return [self.what, f"{sign} {self.target:g}", found, {True: "met", False: "MISSED", None: "-"}[self.met]]


def markdown_table(head: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *rows]]
    return "\n".join(lines)


def show(title: str, head: list[str], rows: list[list[str]], verdicts: list[Verdict], notes: list[str]) -> None:
    """Rendered on a terminal; plain Markdown into a file or a pipe, ready to be pasted."""
    parts = [f"## {title}", markdown_table(head, rows)]
    if verdicts:
        parts.append(markdown_table(["target", "needed", "measured", ""], [verdict.row() for verdict in verdicts]))
    parts += notes
    text = "\n\n".join(parts)
    console = Console()
    if console.is_terminal:
        console.print(Markdown(text))
    else:
        print(text + "\n", flush=True)


def write(scenario: str, body: dict[str, Any], verdicts: list[Verdict]) -> Path:
    """``results/<scenario>.json``; a run that breaks off leaves the former file as it was."""
    RESULTS.mkdir(exist_ok=True)
    target = RESULTS / f"{scenario}.json"
    content = {
        "scenario": scenario,
        "finished": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine(),
        "verdicts": [{**asdict(verdict), "met": verdict.met} for verdict in verdicts],
        **body,
    }
    temporary = target.with_suffix(".json.tmp")
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    temporary.replace(target)
    return target


def summary() -> None:
    """Print the goals of all results, also of earlier runs, the missed ones first."""
    rows = []
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text())
        fields = ("what", "measured", "target", "at_least")
        verdicts = [Verdict(*(verdict[field] for field in fields)) for verdict in content.get("verdicts", ())]
        rows += [
            (verdict.met is not False, [path.stem, *verdict.row(), content.get("finished", "")[:10]])
            for verdict in verdicts
        ]
    rows.sort(key=lambda row: row[0])
    missed = sum(not met for met, _ in rows)
    title = f"{len(rows)} goals, {missed} missed"
    head = ["scenario", "goal", "needed", "measured", "", "on"]
    show(title, head, [cells for _, cells in rows], [], [])


def machine() -> dict[str, Any]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "cores_used": sorted(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "system": platform.platform(),
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "packages": {name: _version(name) for name in ("pyspark", "lmdb", "msgspec", "tidegate")},
        "commit": _first_line(["git", "-C", str(RESULTS.parent), "rev-parse", "HEAD"]),
        "load_average": [round(load, 2) for load in os.getloadavg()],
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor()


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "not found"
    return ((done.stdout + done.stderr).strip().splitlines() or [""])[0]


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"

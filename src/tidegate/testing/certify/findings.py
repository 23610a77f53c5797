"""What ``tidegate certify`` reports."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any


@dataclass(frozen=True)
class Finding:
    """Code that gives other results after a failure, or on another machine. ``kind`` is a name that never changes."""

    kind: str
    title: str
    operator: str
    line: str | None
    found: str
    cure: str

    @property
    def where(self) -> str:
        return self.operator + (f", {self.line}" if self.line else "")


@dataclass
class Report:
    """The result of ``tidegate certify``. ``notes`` are no faults: what limits the report."""

    job: str
    findings: list[Finding] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    schedules: int = 0
    points: int = 0
    """How many different fault points the job was killed at."""
    seconds: float = 0.0

    @property
    def certified(self) -> bool:
        return not self.findings

    def add(self, *found: Finding) -> None:
        """Add findings. A kind is reported once for each line."""
        known = {(finding.kind, finding.operator, finding.line) for finding in self.findings}
        for finding in found:
            if (finding.kind, finding.operator, finding.line) not in known:
                known.add((finding.kind, finding.operator, finding.line))
                self.findings.append(finding)

    def has(self, *kinds: str) -> bool:
        return any(finding.kind in kinds for finding in self.findings)

    def facts(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {"certified": self.certified, **asdict(self)}

    @staticmethod
    def of(facts: dict[str, Any]) -> Report:
        own = {name: value for name, value in facts.items() if name not in ("certified", "findings")}
        return Report(**own, findings=[Finding(**finding) for finding in facts["findings"]])

    def lines(self) -> Iterator[str]:
        """Yield the report as text."""
        count = len(self.findings)
        verdict = "no findings" if not count else f"{count} finding{'s' if count > 1 else ''}"
        yield (
            f"job '{self.job}': {verdict}; {self.schedules} schedules in {self.seconds:.0f} s, killed at {self.points} "
            "different fault points"
        )
        for number, finding in enumerate(self.findings, 1):
            yield ""
            yield f"{number}. {finding.title} [{finding.kind}]"
            yield f"  where: {finding.where}"
            yield f"  found: {finding.found}"
            yield f"  cure: {finding.cure}"
        if self.notes:
            yield ""
        for note in self.notes:
            yield f"note: {note}"

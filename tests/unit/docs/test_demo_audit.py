"""The demo's audit: passes on what the formula says, and sees every way in which output can be wrong."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

DEMO = Path(__file__).parents[3] / "examples" / "demo"
COUNT = 3_000


@pytest.fixture
def audit(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    monkeypatch.syspath_prepend(str(DEMO))
    for name in ("audit", "orders"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    import audit as module

    return module


@pytest.fixture
def output(audit: ModuleType, tmp_path: Path) -> Path:
    """Right output, in two parts each, as a plain loop over the orders makes it."""
    placed = [audit.order(number) for number in range(COUNT)]
    so_far: dict[int, tuple[int, int]] = {}
    totals = []
    for number, customer, cents, _ in placed:
        orders, total = so_far.get(customer, (0, 0))
        so_far[customer] = orders + 1, total + cents
        totals.append(f"{number},{customer},{cents},{orders + 1},{total + cents}")
    alerts = [f"{number},{customer},{cents}" for number, customer, cents, _ in placed if cents >= audit.LARGE_CENTS]
    for name, lines in {"totals": totals, "windows": list(audit.windows(placed)), "alerts": alerts}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "part-a").write_text("".join(f"{line}\n" for line in lines[::2]))
        (tmp_path / name / "part-b").write_text("".join(f"{line}\n" for line in lines[1::2]))
    assert alerts
    return tmp_path


def test_right_output_passes(audit: ModuleType, output: Path) -> None:
    assert audit.audit(output, COUNT).passed


@pytest.mark.parametrize("kind", ["totals", "windows", "alerts"])
@pytest.mark.parametrize("fault", ["lost", "doubled", "wrong"])
def test_a_line_lost_doubled_or_changed_fails(audit: ModuleType, output: Path, kind: str, fault: str) -> None:
    part = output / kind / "part-a"
    first, *rest = part.read_text().splitlines(keepends=True)
    changed = {"lost": rest, "doubled": [first, first, *rest], "wrong": ["9" + first, *rest]}[fault]
    part.write_text("".join(changed))
    result = audit.audit(output, COUNT)
    finding = result.findings[["totals", "windows", "alerts"].index(kind)]
    assert not result.passed
    assert (finding.lost, finding.doubled, finding.wrong) == {
        "lost": (1, 0, 0),
        "doubled": (0, 1, 0),
        "wrong": (1, 0, 1),
    }[fault]


def test_a_running_total_that_does_not_add_up_fails(audit: ModuleType, output: Path) -> None:
    part = output / "totals" / "part-a"
    first, *rest = part.read_text().splitlines()
    number, customer, cents, orders, total = first.split(",")
    part.write_text("\n".join([f"{number},{customer},{cents},{orders},{int(total) + 1}", *rest]) + "\n")
    result = audit.audit(output, COUNT)
    assert not result.passed
    assert result.wrong_customers == [int(customer)]


def test_a_hidden_file_left_behind_fails(audit: ModuleType, output: Path) -> None:
    (output / "alerts" / ".part-c.inprogress.x").write_text("")
    assert not audit.audit(output, COUNT).passed

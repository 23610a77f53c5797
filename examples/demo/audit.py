"""An independent reader: what the demo's output must be by the orders' formula, against what is in the committed files.

    python audit.py OUTPUT_DIRECTORY ORDERS

Plain Python over plain files: nothing of Tidegate or Spark is imported, and no figure the job has counted itself is believed.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from orders import CUSTOMERS, order

GAP_MS = 5 * 60 * 1000
LARGE_CENTS = 250_000


@dataclass(frozen=True)
class Finding:
    """One kind of output: lines expected and found, lost, doubled, and foreign ones (never to be written, or wrong)."""

    what: str
    expected: int
    found: int
    lost: int
    doubled: int
    wrong: int

    @property
    def right(self) -> bool:
        return self.found == self.expected and not (self.lost or self.doubled or self.wrong)


@dataclass(frozen=True)
class Audit:
    findings: list[Finding]
    customers: int
    wrong_customers: list[int]
    """Whose running totals do not add up."""
    hidden: list[str]
    """Files that are neither committed nor cleared away."""

    @property
    def passed(self) -> bool:
        return all(finding.right for finding in self.findings) and not self.wrong_customers and not self.hidden


def audit(output: Path, count: int) -> Audit:
    """``output``: the directory with totals/, windows/ and alerts/; ``count``: orders 0 to count - 1 were placed."""
    orders = [order(number) for number in range(count)]
    totals = list(lines(output / "totals"))
    placed = [f"{number},{customer},{cents}" for number, customer, cents, _ in orders]
    findings = [
        compare("orders", placed, (line.rsplit(",", 2)[0] for line in totals)),
        compare("activity windows", windows(orders), lines(output / "windows")),
        compare(
            "alerts", (line for line in placed if int(line.rsplit(",", 1)[1]) >= LARGE_CENTS), lines(output / "alerts")
        ),
    ]
    return Audit(findings, CUSTOMERS, wrong_totals(totals), [str(path) for path in hidden(output)])


def lines(directory: Path) -> Iterator[str]:
    """Lines of all files a reader sees: hidden ones are not published."""
    for path in sorted(directory.rglob("*")):
        if path.is_file() and not path.name.startswith("."):
            yield from path.read_text().splitlines()


def hidden(output: Path) -> list[Path]:
    return [path for path in output.rglob(".*") if path.is_file()]


def compare(what: str, expected: Iterable[str], found: Iterable[str]) -> Finding:
    wanted, there = Counter(expected), Counter(found)
    lost = sum((wanted - there).values())
    doubled = sum(number - wanted[line] for line, number in there.items() if line in wanted and number > wanted[line])
    wrong = sum(number for line, number in there.items() if line not in wanted)
    return Finding(what, wanted.total(), there.total(), lost, doubled, wrong)


def windows(orders: list[tuple[int, int, int, int]]) -> Iterator[str]:
    """Orders of a customer in event time, cut where more than the gap lies between two."""
    of_customer: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for _, customer, cents, event_ms in orders:
        of_customer[customer].append((event_ms, cents))
    for customer, events in of_customer.items():
        events.sort()
        first = 0
        for index in range(1, len(events) + 1):
            if index == len(events) or events[index][0] - events[index - 1][0] > GAP_MS:
                window = events[first:index]
                yield f"{customer},{window[0][0]},{window[-1][0]},{len(window)},{sum(cents for _, cents in window)}"
                first = index


def wrong_totals(totals: Iterable[str]) -> list[int]:
    """Customers whose lines, in the order they count themselves, are not 1, 2, 3, ... with the sum so far."""
    of_customer: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for line in totals:
        _, customer, cents, orders, total = map(int, line.split(","))
        of_customer[customer].append((orders, total, cents))
    return sorted(customer for customer, entries in of_customer.items() if not adds_up(sorted(entries)))


def adds_up(entries: list[tuple[int, int, int]]) -> bool:
    sum_so_far = 0
    for position, (orders, total, cents) in enumerate(entries, 1):
        sum_so_far += cents
        if orders != position or total != sum_so_far:
            return False
    return True


def main() -> int:
    result = audit(Path(sys.argv[1]), int(sys.argv[2]))
    for finding in result.findings:
        print(finding)
    print(f"totals wrong for {len(result.wrong_customers)} customers; files left hidden: {len(result.hidden)}")
    print("PASSED" if result.passed else "FAILED")
    return 0 if result.passed else 1


if __name__ == "__main__":
    sys.exit(main())

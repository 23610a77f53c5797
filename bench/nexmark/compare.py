"""Compare the outputs of two engines, or of an engine and the model, as the contract of each query says.

``python bench/nexmark/compare.py q5 DIR DIR`` reads committed files only (names that begin with ``.`` or ``_`` are left out).

Most queries: equal multisets of lines. Numbers are compared as numbers, those with a fraction up to a relative 1e-9. q4, q15, q16,
q17 (a line for each update): as many lines of each key, and an equal last line of each key. q18: an equal newest line of each
key. q19: equal ten best of each key, without the rank. q12: equal sums of each bidder.
"""

from __future__ import annotations

import math
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

Row = tuple[Any, ...]
CLOSE = 1e-9
UPDATES = {"q4": (1, 1), "q15": (1, 1), "q16": (2, 3), "q17": (2, 2)}
"""Query -> how many fields are the key, the place of the number that grows with each line."""


def lines_of(query: str, directory: Path) -> Iterator[str]:
    """Yield the committed lines below a directory, in no particular order; of q10 with their bucket before them."""
    for path in sorted(directory.rglob("*")):
        hidden = any(part.startswith((".", "_")) for part in path.relative_to(directory).parts)
        if path.is_file() and not hidden:
            bucket = f"{path.parent.relative_to(directory)}," if query == "q10" else ""
            with path.open() as file:
                yield from (bucket + line.rstrip("\n") for line in file)


def _value(text: str) -> Any:
    digits = text.removeprefix("-")
    if digits[:1].isdigit():
        try:
            return int(text)
        except ValueError:
            pass
        try:
            return float(text)
        except ValueError:
            pass
    return text


def row(line: str) -> Row:
    """Return the fields of a line, numbers as numbers."""
    return tuple(map(_value, line.split(",")))


def comparable(query: str, lines: Iterable[str]) -> Counter[Row]:
    """Return what must be equal for a query, with how often it is there."""
    if query in UPDATES:
        return _updates(lines, *UPDATES[query])
    if query == "q18":
        newest: dict[str, tuple[int, int, str]] = {}
        for line in lines:
            auction, bidder, price, when = line.split(",")
            key, found = f"{auction},{bidder}", (int(when), int(price), line)
            newest[key] = max(newest.get(key, found), found)
        return Counter(row(found[2]) for found in newest.values())
    if query == "q19":
        of_auction: dict[str, list[Row]] = defaultdict(list)
        for line in lines:
            auction, bidder, price, when, _ = line.split(",")
            of_auction[auction].append((-int(price), int(when), int(bidder)))
        best = ((int(auction), bids) for auction, bids in of_auction.items())
        return Counter((auction, *bid) for auction, bids in best for bid in sorted(bids)[:10])
    if query == "q12":
        sums: Counter[Row] = Counter()
        for line in lines:
            bidder, count, _, _ = line.split(",")
            sums[int(bidder),] += int(count)
        return sums
    return Counter(map(row, lines))


def _updates(lines: Iterable[str], key: int, counter: int) -> Counter[Row]:
    last: dict[str, tuple[int, str]] = {}
    many: Counter[str] = Counter()
    for line in lines:
        fields = line.split(",", counter + 1)
        of, count = ",".join(fields[:key]), int(fields[counter])
        many[of] += 1
        if of not in last or count > last[of][0]:
            last[of] = count, line
    # the number of lines as one more field
    return Counter((*row(line), many[of]) for of, (_, line) in last.items())


def differences(query: str, left: Iterable[str], right: Iterable[str], limit: int = 5) -> list[str]:
    """Return what differs, at most ``limit`` lines of each side; nothing if the outputs are equal."""
    left, right = list(left), list(right)
    if len(left) == len(right) and sum(map(hash, left)) == sum(map(hash, right)):
        return []  # the same lines: the usual case, and quick
    a, b = comparable(query, left), comparable(query, right)
    only_a, only_b = _unmatched(a - b, b - a)
    if not only_a and not only_b:
        return []
    found = [f"{sum(only_a.values())} only in the first, {sum(only_b.values())} only in the second"]
    for sign, side in (("<", only_a), (">", only_b)):
        found += [f"{sign} {','.join(map(str, r))}  x{side[r]}" for r in sorted(side, key=repr)[:limit]]
    return found


def _unmatched(a: Counter[Row], b: Counter[Row]) -> tuple[Counter[Row], Counter[Row]]:
    """Take away pairs of rows that differ only in fractions, and only by a little."""
    of_rest: dict[Row, list[Row]] = defaultdict(list)
    for r in b.elements():
        of_rest[_without_fractions(r)].append(r)
    left: Counter[Row] = Counter()
    for r in a.elements():
        near = of_rest.get(_without_fractions(r), [])
        match = next((other for other in near if _close(r, other)), None)
        if match is None:
            left[r] += 1
        else:
            near.remove(match)
    return left, Counter(r for rows in of_rest.values() for r in rows)


def _without_fractions(r: Row) -> Row:
    """One engine may write 5 and another 5.0, so a float that is whole counts as an int would: both are left out by place."""
    return tuple(None if isinstance(field, float) else field for field in r)


def _close(a: Row, b: Row) -> bool:
    return all(
        math.isclose(x, y, rel_tol=CLOSE) if isinstance(x, float) and isinstance(y, float) else x == y
        for x, y in zip(a, b, strict=True)
    )


def main() -> int:
    query, first, second = sys.argv[1:]
    found = differences(query, lines_of(query, Path(first)), lines_of(query, Path(second)))
    print("\n".join(found) if found else "equal")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())

"""A plain Python model of each Nexmark query: events in the order of their numbers in, lines out. No engine, no watermark.

The model of an update query gives one of the possible orders; ``compare.py`` compares only what no order changes.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

Event = dict[str, Any]
WINDOW, SLIDE, DAY = 10_000, 2_000, 86_400_000


class Model:
    """The events of an input, by kind, and the side input."""

    def __init__(self, events: Iterable[Event], side: dict[int, str] | None = None) -> None:
        self.persons: list[Event] = []
        self.auctions: list[Event] = []
        self.bids: list[Event] = []
        for event in events:
            name, rows = (("person", self.persons), ("auction", self.auctions), ("bid", self.bids))[event["event_type"]]
            rows.append(event[name])
        self.side = side or {}

    @classmethod
    def of_directory(cls, directory: Path) -> Model:
        """Read the parts in turn, so that events are in the order of their numbers."""
        parts = sorted(directory.glob("part-*.jsonl"), key=lambda path: int(path.stem.split("-")[1]))
        files = [path.read_text().splitlines() for path in parts]
        longest = max(map(len, files))
        lines = (file[at] for at in range(longest) for file in files if at < len(file))
        rows = (line.split(",", 1) for line in (directory / "side.csv").read_text().splitlines())
        return cls(map(json.loads, lines), {int(key): value for key, value in rows})

    def lines(self, query: str) -> list[str]:
        """Return the lines of a query."""
        return [",".join(map(str, row)) for row in _QUERIES[query](self)]


Rows = Iterator[tuple[Any, ...]]


def _q0(m: Model) -> Rows:
    for b in m.bids:
        yield b["auction"], b["bidder"], b["price"], b["dateTime"], b["extra"]


def _q1(m: Model) -> Rows:
    for b in m.bids:
        yield b["auction"], b["bidder"], b["price"] * 0.908, b["dateTime"], b["extra"]


def _q2(m: Model) -> Rows:
    for b in m.bids:
        if b["auction"] % 123 == 0:
            yield b["auction"], b["price"]


def _q3(m: Model) -> Rows:
    persons = {p["id"]: p for p in m.persons if p["state"] in ("OR", "ID", "CA")}
    for a in m.auctions:
        p = persons.get(a["seller"])
        if a["category"] == 10 and p:
            yield p["name"], p["city"], p["state"], a["id"]


def _winning(m: Model) -> Iterator[tuple[Event, Event]]:
    of_auction = defaultdict(list)
    for b in m.bids:
        of_auction[b["auction"]].append(b)
    for a in m.auctions:
        valid = [b for b in of_auction[a["id"]] if a["dateTime"] <= b["dateTime"] <= a["expires"]]
        if valid:
            yield a, min(valid, key=lambda b: (-b["price"], b["dateTime"], b["bidder"]))


def _q4(m: Model) -> Rows:
    totals: dict[int, tuple[int, int]] = defaultdict(lambda: (0, 0))
    for a, b in sorted(_winning(m), key=lambda won: (won[0]["expires"], won[0]["id"])):
        n, total = totals[a["category"]]
        totals[a["category"]] = n, total = n + 1, total + b["price"]
        yield a["category"], n, total, total / n


def _q5(m: Model) -> Rows:
    windows: dict[int, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for b in m.bids:
        last = b["dateTime"] // SLIDE * SLIDE
        for start in range(last, last - WINDOW, -SLIDE):
            windows[start + WINDOW][b["auction"]] += 1
    for end, counts in windows.items():
        most = max(counts.values())
        yield from ((auction, n, end) for auction, n in counts.items() if n == most)


def _q7(m: Model) -> Rows:
    windows: dict[int, list[Event]] = defaultdict(list)
    for b in m.bids:
        windows[b["dateTime"] // WINDOW * WINDOW + WINDOW].append(b)
    for end, bids in windows.items():
        b = min(bids, key=lambda b: (-b["price"], b["bidder"], b["dateTime"], b["auction"]))
        yield b["auction"], b["price"], b["bidder"], b["dateTime"], b["extra"], end


def _q8(m: Model) -> Rows:
    sellers = {(a["seller"], a["dateTime"] // WINDOW) for a in m.auctions}
    for p in m.persons:
        if (p["id"], p["dateTime"] // WINDOW) in sellers:
            yield p["id"], p["name"], p["dateTime"] // WINDOW * WINDOW


def _q9(m: Model) -> Rows:
    for a, b in _winning(m):
        yield a["id"], a["itemName"], a["seller"], a["category"], b["price"], b["bidder"], b["dateTime"]


def _q10(m: Model) -> Rows:
    for b in m.bids:
        bucket = datetime.fromtimestamp(b["dateTime"] // 1000, UTC).strftime("%Y-%m-%d/%H-%M")
        yield bucket, b["auction"], b["bidder"], b["price"], b["dateTime"], b["extra"]


def _q11(m: Model) -> Rows:
    of_bidder = defaultdict(list)
    for b in m.bids:
        of_bidder[b["bidder"]].append(b["dateTime"])
    for bidder, times in of_bidder.items():
        times.sort()
        start, end, n = times[0], times[0] + WINDOW, 0
        for time in times:
            # windows that only touch are one window, as Flink's TimeWindow.intersects says
            if time > end:
                yield bidder, n, start, end
                start, n = time, 0
            end, n = time + WINDOW, n + 1
        yield bidder, n, start, end


def _q12(m: Model) -> Rows:
    counts: dict[int, int] = defaultdict(int)
    for b in m.bids:
        counts[b["bidder"]] += 1
    for bidder, n in counts.items():
        yield bidder, n, 0, 0


def _q13(m: Model) -> Rows:
    for b in m.bids:
        yield b["auction"], b["bidder"], b["price"], b["dateTime"], m.side[b["auction"] % 10_000]


def _q14(m: Model) -> Rows:
    for b in m.bids:
        price = 0.908 * b["price"]
        if 1_000_000 < price < 50_000_000:
            hour = datetime.fromtimestamp(b["dateTime"] // 1000, UTC).hour
            kind = "dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime"
            yield b["auction"], b["bidder"], price, kind, b["dateTime"], b["extra"], b["extra"].count("c")


def _day(milliseconds: int) -> str:
    return datetime.fromtimestamp(milliseconds // 1000, UTC).strftime("%Y-%m-%d")


def _rank(price: int) -> int:
    return 0 if price < 10_000 else 1 if price < 1_000_000 else 2


class _Twelve:
    """The numbers of q15 and q16."""

    def __init__(self) -> None:
        self.bids = [0, 0, 0]
        self.bidders: list[set[int]] = [set(), set(), set()]
        self.auctions: list[set[int]] = [set(), set(), set()]
        self.all_bidders: set[int] = set()
        self.all_auctions: set[int] = set()
        self.minute = ""

    def add(self, bid: Event) -> tuple[int, ...]:
        rank = _rank(bid["price"])
        self.bids[rank] += 1
        self.bidders[rank].add(bid["bidder"])
        self.auctions[rank].add(bid["auction"])
        self.all_bidders.add(bid["bidder"])
        self.all_auctions.add(bid["auction"])
        self.minute = max(self.minute, datetime.fromtimestamp(bid["dateTime"] // 1000, UTC).strftime("%H:%M"))
        persons, items = map(len, self.bidders), map(len, self.auctions)
        return sum(self.bids), *self.bids, len(self.all_bidders), *persons, len(self.all_auctions), *items


def _q15(m: Model) -> Rows:
    days: dict[str, _Twelve] = defaultdict(_Twelve)
    for b in m.bids:
        day = _day(b["dateTime"])
        yield day, *days[day].add(b)


def _q16(m: Model) -> Rows:
    keys: dict[tuple[str, str], _Twelve] = defaultdict(_Twelve)
    for b in m.bids:
        key = b["channel"], _day(b["dateTime"])
        numbers = keys[key].add(b)
        yield *key, keys[key].minute, *numbers


def _q17(m: Model) -> Rows:
    prices: dict[tuple[int, str], list[int]] = defaultdict(lambda: [0, 0, 0, 0, 1 << 60, 0, 0])
    for b in m.bids:
        key, price = (b["auction"], _day(b["dateTime"])), b["price"]
        n = prices[key]
        n[0] += 1
        n[1 + _rank(price)] += 1
        n[4], n[5], n[6] = min(n[4], price), max(n[5], price), n[6] + price
        yield *key, *n[:6], n[6] / n[0], n[6]


def _q18(m: Model) -> Rows:
    last: dict[tuple[int, int], tuple[int, int]] = {}
    for b in m.bids:
        key, found = (b["auction"], b["bidder"]), (b["dateTime"], b["price"])
        if key not in last or found > last[key]:
            last[key] = found
            yield *key, b["price"], b["dateTime"]


def _q19(m: Model) -> Rows:
    best: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for b in m.bids:
        top, found = best[b["auction"]], (-b["price"], b["dateTime"], b["bidder"])
        rank = sum(other <= found for other in top)
        if rank < 10:
            top.insert(rank, found)
            del top[10:]
            yield b["auction"], b["bidder"], b["price"], b["dateTime"], rank + 1


def _q20(m: Model) -> Rows:
    auctions = {a["id"]: a for a in m.auctions if a["category"] == 10}
    for b in m.bids:
        if a := auctions.get(b["auction"]):
            yield b["auction"], b["bidder"], b["price"], b["dateTime"], a["itemName"], a["category"], a["seller"]


def _q21(m: Model) -> Rows:
    known = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
    for b in m.bids:
        match = re.search("channel_id=([^&]*)", b["url"])
        found = known.get(b["channel"].lower()) or (match and match[1])
        if found:
            yield b["auction"], b["bidder"], b["price"], b["channel"], found


def _q22(m: Model) -> Rows:
    for b in m.bids:
        yield b["auction"], b["bidder"], b["price"], b["channel"], *b["url"].split("/")[3:6]


_QUERIES: dict[str, Callable[[Model], Rows]] = {
    "q0": _q0, "q1": _q1, "q2": _q2, "q3": _q3, "q4": _q4, "q5": _q5, "q7": _q7, "q8": _q8, "q9": _q9, "q10": _q10, "q11": _q11,
    "q12": _q12, "q13": _q13, "q14": _q14, "q15": _q15, "q16": _q16, "q17": _q17, "q18": _q18, "q19": _q19, "q20": _q20,
    "q21": _q21, "q22": _q22,
}  # fmt: skip
QUERIES = list(_QUERIES)

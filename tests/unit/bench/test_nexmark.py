"""The Nexmark generator, the models of the queries and the comparer: without an engine."""

from __future__ import annotations

import hashlib
import json
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

NEXMARK = Path(__file__).resolve().parents[3] / "bench" / "nexmark"


@pytest.fixture(scope="module")
def nexmark() -> Any:
    """The modules of bench/nexmark. Their names are short, so they are forgotten afterwards."""
    names = ("generator", "generate", "model", "compare", "source", "plot", "run", "report", "engines", "cpu_time")
    former = {name: sys.modules.pop(name, None) for name in names}
    sys.path.insert(0, str(NEXMARK))
    try:
        yield type("Modules", (), {name: __import__(name) for name in names})
    finally:
        sys.path[:] = [path for path in sys.path if path not in (str(NEXMARK), str(NEXMARK.parent))]
        for name, module in former.items():
            sys.modules.pop(name, None)
            if module is not None:
                sys.modules[name] = module


@pytest.fixture(scope="module")
def lines(nexmark: Any) -> list[bytes]:
    return b"".join(nexmark.generator.Generator(1).lines(0, 10_000)).splitlines()


@pytest.fixture(scope="module")
def events(lines: list[bytes]) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines]


# ---- generator


def test_same_seed_gives_the_same_bytes(nexmark: Any, lines: list[bytes]) -> None:
    again = b"".join(nexmark.generator.Generator(1).lines(0, 10_000)).splitlines()
    other = b"".join(nexmark.generator.Generator(2).lines(0, 100)).splitlines()
    assert again == lines
    assert all(a != b for a, b in zip(other, lines, strict=False))


def test_bytes_of_a_seed_never_change(lines: list[bytes]) -> None:
    assert hashlib.sha256(b"\n".join(lines)).hexdigest() == DIGEST


@pytest.mark.parametrize(
    ("start", "end", "step"),
    [
        (0, 1, 1),
        (7, 8, 1),
        (49, 151, 1),
        (0, 10_000, 2),
        (1, 10_000, 2),
        (3, 9_999, 4),
        (5, 777, 3),
        (50, 50, 1),
        (123, 124, 7),
    ],
)
def test_slice_is_a_part_of_the_whole(nexmark: Any, lines: list[bytes], start: int, end: int, step: int) -> None:
    made = b"".join(nexmark.generator.Generator(1).lines(start, end, step))
    assert made.splitlines() == lines[start:end:step]


def test_slice_longer_than_a_batch_is_complete(nexmark: Any) -> None:
    batch = nexmark.generator.BATCH
    made = b"".join(nexmark.generator.Generator(1).lines(33, 33 + 2 * batch + 1)).splitlines()
    assert len(made) == 2 * batch + 1
    assert made[-1] == b"".join(nexmark.generator.Generator(1).lines(33 + 2 * batch, 33 + 2 * batch + 1)).strip()


def test_fifty_events_are_a_person_three_auctions_and_bids(events: list[dict[str, Any]]) -> None:
    kinds = [event["event_type"] for event in events]
    assert kinds[:50] == [0] + [1] * 3 + [2] * 46
    assert kinds == kinds[:50] * 200


def test_members_and_order_are_those_of_the_contract(events: list[dict[str, Any]]) -> None:
    shapes = {
        0: ("person", "id name emailAddress creditCard city state dateTime extra"),
        1: ("auction", "id itemName description initialBid reserve dateTime expires seller category extra"),
        2: ("bid", "auction bidder price channel url dateTime extra"),
    }
    for event in events:
        name, members = shapes[event["event_type"]]
        assert list(event) == ["event_type", name]
        assert list(event[name]) == members.split()


def test_ids_and_times_follow_the_event_number(nexmark: Any, events: list[dict[str, Any]]) -> None:
    base = nexmark.generator.BASE_TIME
    persons = [event["person"]["id"] for event in events if event["event_type"] == 0]
    auctions = [event["auction"]["id"] for event in events if event["event_type"] == 1]
    assert persons == list(range(1000, 1200))
    assert auctions == list(range(1000, 1600))
    names = ("person", "auction", "bid")
    assert [event[names[event["event_type"]]]["dateTime"] for event in events] == [
        base + n // 10 for n in range(10_000)
    ]


def test_half_of_the_bids_are_on_hot_auctions_and_three_quarters_by_hot_bidders(events: list[dict[str, Any]]) -> None:
    bids = [event["bid"] for event in events if event["event_type"] == 2]
    hot_auction = sum(bid["auction"] % 100 == 0 for bid in bids) / len(bids)
    hot_bidder = sum(bid["bidder"] % 100 == 1 for bid in bids) / len(bids)
    hot_channel = sum(not bid["channel"].startswith("channel-") for bid in bids) / len(bids)
    assert (hot_auction, hot_bidder, hot_channel) == pytest.approx((0.51, 0.75, 0.5), abs=0.02)
    assert 100 <= min(bid["price"] for bid in bids) <= max(bid["price"] for bid in bids) <= 99_999_999


def test_average_sizes_are_those_of_nexmark(events: list[dict[str, Any]]) -> None:
    bids = [32 + len(event["bid"]["extra"]) for event in events if event["event_type"] == 2]
    auctions = [event["auction"] for event in events if event["event_type"] == 1]
    sizes = [48 + sum(len(a[name]) for name in ("itemName", "description", "extra")) for a in auctions]
    assert sum(bids) / len(bids) == pytest.approx(100, rel=0.02)
    assert sum(sizes) / len(sizes) == pytest.approx(500, rel=0.02)


def test_auctions_and_bids_refer_to_what_is_near(events: list[dict[str, Any]]) -> None:
    for number, event in enumerate(events):
        epoch = number // 50
        if event["event_type"] == 2:
            assert 1000 + max(0, 3 * epoch + 2 - 200) <= event["bid"]["auction"] <= 1000 + 3 * epoch + 2 + 10
            assert 1000 <= event["bid"]["bidder"] <= 1000 + epoch + 1 + 10
        elif event["event_type"] == 1:
            auction = event["auction"]
            assert 0 < auction["expires"] - auction["dateTime"] <= 333
            assert 10 <= auction["category"] < 15
            assert auction["reserve"] >= auction["initialBid"]


def test_files_have_every_event_once_in_its_part(nexmark: Any, lines: list[bytes], tmp_path: Path) -> None:
    nexmark.generate.write_files(tmp_path, 1_000, 3, 1)
    parts = [(tmp_path / f"part-{part}.jsonl").read_bytes().splitlines() for part in range(3)]
    assert parts == [lines[part:1_000:3] for part in range(3)]
    side = (tmp_path / "side.csv").read_text().splitlines()
    assert [line.split(",")[0] for line in side] == [str(key) for key in range(10_000)]


def test_source_reads_the_same_lines_over_several_plans_and_a_restore(nexmark: Any, lines: list[bytes]) -> None:
    source = nexmark.source.NexmarkSource(1_001, parts=2)
    enumerator = source.create_enumerator(2, None)
    found: dict[str, list[str]] = {"0": [], "1": []}
    finished = False
    while not finished:
        plan = enumerator.plan(150, 0)
        for interval in plan.intervals:
            batches = source.create_reader(interval.subtask).read(interval)
            found[interval.split] += [line for batch in batches for line in batch.rows()]
        finished = plan.finished
        enumerator = source.create_enumerator(1, enumerator.snapshot())
    assert found == {str(part): [line.decode() for line in lines[part:1_001:2]] for part in (0, 1)}


# ---- models


def bid(
    auction: int, bidder: int, price: int, time: int, channel: str = "Apple", url: str = "https://h/a/b/c/i"
) -> dict[str, Any]:
    values = {
        "auction": auction,
        "bidder": bidder,
        "price": price,
        "channel": channel,
        "url": url,
        "dateTime": time,
        "extra": "cxc",
    }
    return {"event_type": 2, "bid": values}


def auction(number: int, time: int, expires: int, seller: int = 7, category: int = 10) -> dict[str, Any]:
    values = {
        "id": number,
        "itemName": "pen",
        "dateTime": time,
        "expires": expires,
        "seller": seller,
        "category": category,
    }
    return {"event_type": 1, "auction": values}


def person(number: int, time: int, state: str = "OR") -> dict[str, Any]:
    return {"event_type": 0, "person": {"id": number, "name": "Ann", "city": "Bend", "state": state, "dateTime": time}}


TINY = [
    person(7, 1_000),
    person(8, 1_000, "WA"),
    bid(1, 5, 50, 1_900),
    auction(1, 2_000, 4_000),
    auction(2, 2_000, 4_000, seller=8, category=11),
    bid(1, 5, 100, 2_000),
    bid(1, 6, 200, 4_000),
    bid(1, 4, 200, 4_000, "x", "https://h/a/b/c/i?q=1&channel_id=77"),
    bid(1, 6, 900, 4_001, "y"),
    bid(123, 6, 2_000_000, 14_000),
    bid(123, 6, 20_000, 14_000),
]
EXPECTED = {
    "q1": ["1,5,45.4,1900,cxc"],
    "q2": ["123,2000000", "123,20000"],
    "q3": ["Ann,Bend,OR,1"],
    "q4": ["10,1,200,200.0"],
    "q5": ["1,5,6000", "1,5,8000", "1,5,10000", "1,4,12000", "123,2,16000", "123,2,24000"],
    "q7": ["1,900,6,4001,cxc,10000", "123,2000000,6,14000,cxc,20000"],
    "q8": ["7,Ann,0", "8,Ann,0"],
    "q9": ["1,pen,7,10,200,4,4000"],
    "q10": ["1970-01-01/00-00,1,5,50,1900,cxc"],
    "q11": ["5,2,1900,12000", "4,1,4000,14000", "6,4,4000,24000"],
    "q12": ["5,2,0,0", "6,4,0,0", "4,1,0,0"],
    "q14": ["123,6,1816000.0,nightTime,14000,cxc,2"],
    "q15": ["1970-01-01,1,1,0,0,1,1,0,0,1,1,0,0", "1970-01-01,7,5,1,1,3,3,1,1,2,1,1,1"],
    "q16": ["x,1970-01-01,00:00,1,1,0,0,1,1,0,0,1,1,0,0"],
    "q17": ["1,1970-01-01,2,2,0,0,50,100,75.0,150"],
    "q18": ["123,6,2000000,14000", "1,6,900,4001"],
    "q19": ["1,5,50,1900,1", "1,5,100,2000,1", "1,6,200,4000,1", "1,4,200,4000,1"],
    "q20": ["1,5,50,1900,pen,10,7"],
    "q21": ["1,5,50,Apple,0", "1,4,200,x,77"],
    "q22": ["1,5,50,Apple,a,b,c"],
}


@pytest.mark.parametrize("query", EXPECTED)
def test_model_contains_the_lines_worked_out_by_hand(nexmark: Any, query: str) -> None:
    missing = Counter(EXPECTED[query]) - Counter(nexmark.model.Model(TINY).lines(query))
    assert not missing


def test_model_reads_the_parts_in_the_order_of_event_numbers(nexmark: Any, tmp_path: Path) -> None:
    nexmark.generate.write_files(tmp_path, 501, 2, 1)
    found = nexmark.model.Model.of_directory(tmp_path)
    times = [b["dateTime"] for b in found.bids]
    assert times == sorted(times)
    assert len(found.persons) + len(found.auctions) + len(times) == 501
    assert found.lines("q13")[0].endswith(f",{found.side[found.bids[0]['auction'] % 10_000]}")


# ---- comparer


def test_order_and_spelling_of_numbers_do_not_matter(nexmark: Any) -> None:
    assert not nexmark.compare.differences("q1", ["1,2.5,a", "2,1.0E7,b"], ["2,10000000,b", "1,2.5000000000001,a"])


@pytest.mark.parametrize(
    ("left", "right"),
    [(["1,a"], ["1,a", "1,a"]), (["1,a"], ["1,b"]), (["1,2.5"], ["1,2.6"]), ([], ["1"]), (["1,2"], ["1,2,3"])],
)
def test_difference_is_found_and_named(nexmark: Any, left: list[str], right: list[str]) -> None:
    assert nexmark.compare.differences("q0", left, right)
    assert nexmark.compare.differences("q0", right, left)


def test_update_queries_compare_the_last_line_and_the_number_of_lines(nexmark: Any) -> None:
    ours = ["10,1,5,5.0", "10,2,9,4.5"]
    assert not nexmark.compare.differences("q4", ours, ["10,1,4,4.0", "10,2,9,4.5"])
    assert nexmark.compare.differences("q4", ours, ["10,1,5,5.0", "10,2,10,5.0"])
    assert nexmark.compare.differences("q4", ours, ["10,2,9,4.5"])


def test_q18_q19_and_q12_compare_what_no_order_changes(nexmark: Any) -> None:
    differences = nexmark.compare.differences
    assert not differences("q18", ["1,2,5,100", "1,2,7,200"], ["1,2,7,200"])
    assert differences("q18", ["1,2,5,100"], ["1,2,7,200"])
    many = [f"1,{n},{n},9,1" for n in range(20)]
    assert not differences("q19", many, [f"1,{n},{n},9,{20 - n}" for n in range(10, 20)])
    assert differences("q19", many, many[:19])
    assert not differences("q12", ["5,2,0,10", "5,3,10,20"], ["5,5,0,10"])
    assert differences("q12", ["5,2,0,10"], ["5,5,0,10"])


def test_hidden_files_are_not_read(nexmark: Any, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "part-0").write_text("1\n2\n")
    (tmp_path / "a" / ".part-1.inprogress").write_text("3\n")
    assert list(nexmark.compare.lines_of("q0", tmp_path)) == ["1", "2"]
    assert list(nexmark.compare.lines_of("q10", tmp_path)) == ["a,1", "a,2"]


# ---- figures


def runs(small: list[float], large: list[float]) -> list[dict[str, Any]]:
    sizes = [(1_000_000, seconds) for seconds in small] + [(3_000_000, seconds) for seconds in large]
    return [{"events": events, "seconds": s, "cpu_seconds": 2 * s, "peak_mb": 9} for events, s in sizes]


def test_figures_are_differences_of_the_medians(nexmark: Any) -> None:
    found = nexmark.run.summary(runs([10, 11, 12], [30, 31, 32]))
    assert found == {"events_per_second": 100_000, "cpu_us_per_event": 20.0, "peak_mb": 9}


@pytest.mark.parametrize(("small", "large"), [([25.3], [27.7]), ([10, 25], [30, 45]), ([10, 10], [9, 9])])
def test_difference_lost_in_noise_gives_no_figure(nexmark: Any, small: list[float], large: list[float]) -> None:
    found = nexmark.run.summary(runs(small, large))
    assert "unresolved" in found
    assert "events_per_second" not in found and "cpu_us_per_event" not in found
    assert nexmark.run.cell(found) == "? (?; 9)"


def test_processor_time_has_a_figure_where_noise_hides_the_time(nexmark: Any) -> None:
    measured = runs([10], [30])
    measured[1]["seconds"] = 11
    found = nexmark.run.summary(measured)
    assert found["cpu_us_per_event"] == 20.0
    assert found["unresolved"] == "seconds: 10.0 and 11.0, runs of one size up to 0.0 apart; larger --events"
    assert nexmark.run.cell(found) == "? (20.00; 9)"
    assert nexmark.run.ratios_of({"tidegate": found, "flink-java": {**found, "cpu_us_per_event": 10.0}}) == (None, 0.5)


def test_goals_are_the_geometric_mean_and_the_least_ratio(nexmark: Any) -> None:
    ratios = {"q0": 4.0, "q1": 1.0, "q2": 0.25}
    of_query: dict[str, Any] = {
        query: {"tidegate": {"cpu_us_per_event": 1.0}, "flink-java": {"cpu_us_per_event": ratio}}
        for query, ratio in ratios.items()
    }
    failed: dict[str, Any] = {"tidegate": {"cpu_us_per_event": 1.0, "failed": "another output"}, "flink-java": {}}
    mean, least = nexmark.run.goals("files-hashmap", {**of_query, "q3": failed})
    assert mean.measured == pytest.approx(1.0) and mean.target == 1.0 and "3 of 22 queries" in mean.what
    assert least.measured == 0.25 and not least.met and "(q2)" in least.what


@pytest.mark.parametrize(
    ("changed", "expected"),
    [({}, True), ({"commit": "older"}, False), ({"failed": "another output"}, False), ({"runs": []}, False)],
    ids=["the same", "another commit", "failed", "no runs"],
)
def test_resumed_run_leaves_out_what_the_same_commit_has_measured(
    nexmark: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, changed: dict[str, Any], expected: bool
) -> None:
    monkeypatch.setattr(nexmark.report, "RESULTS", tmp_path)
    monkeypatch.setattr(nexmark.run, "commit", lambda: "this")
    args = nexmark.run.parsed(["--resume", "--events", "1000000", "3000000", "--repeat", "1"])
    measured = {"runs": runs([10], [30]), "commit": "this"}
    of_query = {"q5": {"tidegate": measured, "flink-java": {**measured, **changed}}}
    (tmp_path / "nexmark.json").write_text(json.dumps({"variants": {"files-hashmap": of_query}}))
    assert nexmark.run.is_measured(args, "q5") is expected
    assert not nexmark.run.is_measured(args, "q7")
    assert not nexmark.run.is_measured(nexmark.run.parsed(["--repeat", "3"]), "q5")
    (tmp_path / "nexmark.json").write_text(json.dumps({"variants": {"files-hashmap": {"q16": of_query["q5"]}}}))
    assert not nexmark.run.is_measured(args, "q16"), "the sizes of q16 are smaller"


def test_no_query_is_begun_that_might_not_end_in_time(nexmark: Any) -> None:
    clock = iter([0, 0, 200, 200, 300, 300])
    begun = nexmark.run.in_time(["q0", "q1", "q2"], 450.0, lambda: float(next(clock)))
    assert list(begun) == ["q0", "q1"]


DIGEST = "eb00b91b80650429dacf33e36ecbd9f3eac87afad38e8c3324955259225c066a"

"""The Nexmark queries as DataStream programs in PyFlink's API: one file for PyFlink and for Tidegate.

On PyFlink: ``python queries.py --query q5 --input DIR --output DIR --checkpoints DIR``. On Tidegate the same behind
``tidegate run --pyflink``. The last line of the output is a JSON object with the seconds of ``execute``.
"""

import argparse
import json
import os
import re
import sys
import time
from datetime import date, datetime, timezone
from pathlib import Path

from pyflink.common import Configuration, Duration, Encoder, SimpleStringSchema, Time, Types, WatermarkStrategy
from pyflink.common.watermark_strategy import TimestampAssigner
from pyflink.datastream import (
    AggregateFunction,
    KeyedCoProcessFunction,
    KeyedProcessFunction,
    MapFunction,
    ProcessWindowFunction,
    StreamExecutionEnvironment,
)
from pyflink.datastream.connectors.base import DeliveryGuarantee
from pyflink.datastream.connectors.file_system import BucketAssigner, FileSink, FileSource, StreamFormat
from pyflink.datastream.connectors.kafka import (
    KafkaOffsetsInitializer,
    KafkaRecordSerializationSchema,
    KafkaSink,
    KafkaSource,
)
from pyflink.datastream.state import ListStateDescriptor, MapStateDescriptor, ValueStateDescriptor
from pyflink.datastream.window import (
    EventTimeSessionWindows,
    SlidingEventTimeWindows,
    Trigger,
    TriggerResult,
    TumblingEventTimeWindows,
    TumblingProcessingTimeWindows,
)

try:
    from pyflink.datastream.functions import CoGroupFunction
except ImportError:  # PyFlink has no co-group
    CoGroupFunction = object

PERSON, AUCTION, BID = 0, 1, 2
KINDS = ("person", "auction", "bid")
DAY_MS = 86_400_000
WINDOW_MS = 10_000
CATEGORY = 10
STATES = ("OR", "ID", "CA")
END_OF_TIME = (1 << 63) - 1


# ---- what several queries use


class EventTime(TimestampAssigner):
    """The time of an event of any kind."""

    def extract_timestamp(self, value, record_timestamp):
        return value[KINDS[value["event_type"]]]["dateTime"]


class TimeOfBid(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value["dateTime"]


def types(letters):
    """Return a new type of a tuple: ``l`` is a whole number, ``s`` a text. PyFlink cannot pickle a type that it has used."""
    return Types.TUPLE([Types.LONG() if letter == "l" else Types.STRING() for letter in letters])


def times(assigner):
    return WatermarkStrategy.for_bounded_out_of_orderness(Duration.of_seconds(4)).with_timestamp_assigner(assigner)


def events_of(lines):
    return lines.map(json.loads)


def bids_of(lines):
    return lines.map(json.loads).filter(lambda event: event["event_type"] == BID).map(lambda event: event["bid"])


def timed_events(lines):
    return events_of(lines).assign_timestamps_and_watermarks(times(EventTime()))


def timed_bids(lines):
    return bids_of(lines).assign_timestamps_and_watermarks(times(TimeOfBid()))


def day_text(day):
    return date.fromordinal(719_163 + day).isoformat()


def rank_of(price):
    return 1 if price < 10_000 else 2 if price < 1_000_000 else 3


class Count(AggregateFunction):
    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        return accumulator + 1

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


class CountLine(ProcessWindowFunction):
    def process(self, key, context, elements):
        window = context.window()
        yield f"{key},{next(iter(elements))},{window.start},{window.end}"


# ---- without state


def q0(lines, options):
    return bids_of(lines).map(
        lambda b: f"{b['auction']},{b['bidder']},{b['price']},{b['dateTime']},{b['extra']}", output_type=Types.STRING()
    )


def q1(lines, options):
    return bids_of(lines).map(
        lambda b: f"{b['auction']},{b['bidder']},{b['price'] * 0.908},{b['dateTime']},{b['extra']}",
        output_type=Types.STRING(),
    )


def q2(lines, options):
    wanted = bids_of(lines).filter(lambda b: b["auction"] % 123 == 0)
    return wanted.map(lambda b: f"{b['auction']},{b['price']}", output_type=Types.STRING())


class MinuteOfBid:
    """The bucket of a line: the minute of its event time. PyFlink has no bucket assigner in Python."""

    def get_bucket_id(self, value, context):
        return time.strftime("%Y-%m-%d/%H-%M", time.gmtime(int(value.split(",", 4)[3]) // 1000))


class WithSideInput(MapFunction):
    def __init__(self, path):
        self.path = path

    def open(self, runtime_context):
        with open(self.path) as file:
            self.values = {int(key): value for key, value in (line.rstrip("\n").split(",", 1) for line in file)}

    def map(self, value):
        found = self.values[value["auction"] % 10_000]
        return f"{value['auction']},{value['bidder']},{value['price']},{value['dateTime']},{found}"


def q13(lines, options):
    return bids_of(lines).map(WithSideInput(options.side or f"{options.input}/side.csv"), output_type=Types.STRING())


def q14_line(bid):
    hour = datetime.fromtimestamp(bid["dateTime"] / 1000, timezone.utc).hour  # noqa: UP017 - PyFlink runs on Python 3.9
    kind = "dayTime" if 8 <= hour <= 18 else "nightTime" if hour <= 6 or hour >= 20 else "otherTime"
    extra = bid["extra"]
    price = 0.908 * bid["price"]
    return f"{bid['auction']},{bid['bidder']},{price},{kind},{bid['dateTime']},{extra},{extra.count('c')}"


def q14(lines, options):
    wanted = bids_of(lines).filter(lambda b: 1_000_000 < 0.908 * b["price"] < 50_000_000)
    return wanted.map(q14_line, output_type=Types.STRING())


CHANNEL_IDS = {"apple": "0", "google": "1", "facebook": "2", "baidu": "3"}
CHANNEL_ID = re.compile(r"(?:&|^)channel_id=([^&]*)")


def q21_lines(bid):
    channel = bid["channel"]
    found = CHANNEL_IDS.get(channel.lower())
    if found is None:
        match = CHANNEL_ID.search(bid["url"])
        if match is None:
            return
        found = match.group(1)
    yield f"{bid['auction']},{bid['bidder']},{bid['price']},{channel},{found}"


def q21(lines, options):
    return bids_of(lines).flat_map(q21_lines, output_type=Types.STRING())


def q22_line(bid):
    parts = bid["url"].split("/")
    return f"{bid['auction']},{bid['bidder']},{bid['price']},{bid['channel']},{parts[3]},{parts[4]},{parts[5]}"


def q22(lines, options):
    return bids_of(lines).map(q22_line, output_type=Types.STRING())


# ---- joins


class LocalItems(KeyedCoProcessFunction):
    """A person, and the auctions that arrive before the person."""

    def open(self, runtime_context):
        self.seller = runtime_context.get_state(ValueStateDescriptor("seller", Types.STRING()))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", Types.LONG()))

    def process_element1(self, value, ctx):
        seller = self.seller.value()
        if seller is None:
            self.waiting.add(value[1])
        else:
            yield f"{seller},{value[1]}"

    def process_element2(self, value, ctx):
        seller = f"{value[1]},{value[2]},{value[3]}"
        self.seller.update(seller)
        for auction in self.waiting.get():
            yield f"{seller},{auction}"
        self.waiting.clear()


def q3(lines, options):
    events = events_of(lines)
    auctions = events.filter(lambda e: e["event_type"] == AUCTION and e["auction"]["category"] == CATEGORY).map(
        lambda e: (e["auction"]["seller"], e["auction"]["id"]), output_type=types("ll")
    )
    persons = events.filter(lambda e: e["event_type"] == PERSON and e["person"]["state"] in STATES).map(
        lambda e: (e["person"]["id"], e["person"]["name"], e["person"]["city"], e["person"]["state"]),
        output_type=types("lsss"),
    )
    keyed = auctions.key_by(lambda a: a[0], key_type=Types.LONG()).connect(
        persons.key_by(lambda p: p[0], key_type=Types.LONG())
    )
    return keyed.process(LocalItems(), output_type=Types.STRING())


class WinningBid(KeyedCoProcessFunction):
    """The best bid of an auction, when the auction expires.

    Auction: id, item, seller, category, dateTime, expires. Bid: auction, price, bidder, dateTime. A bid that arrives before its
    auction waits. When the watermark has passed a waiting bid, its auction is later than the bid or has expired."""

    def open(self, runtime_context):
        self.auction = runtime_context.get_state(ValueStateDescriptor("auction", types("lsllll")))
        self.best = runtime_context.get_state(ValueStateDescriptor("best", types("llll")))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", types("llll")))

    def process_element1(self, value, ctx):
        self.auction.update(value)
        ctx.timer_service().register_event_time_timer(value[5])
        for bid in self.waiting.get():
            self.consider(value, bid)
        self.waiting.clear()
        return []

    def process_element2(self, value, ctx):
        auction = self.auction.value()
        if auction is None:
            self.waiting.add(value)
            # the next full second: one timer for many bids
            ctx.timer_service().register_event_time_timer((value[3] // 1000 + 1) * 1000)
        else:
            self.consider(auction, value)
        return []

    def consider(self, auction, bid):
        if auction[4] <= bid[3] <= auction[5]:
            best = self.best.value()
            if best is None or (-bid[1], bid[3], bid[2]) < (-best[1], best[3], best[2]):
                self.best.update(bid)

    def on_timer(self, timestamp, ctx):
        auction = self.auction.value()
        if auction is None:
            self.waiting.update([bid for bid in self.waiting.get() if bid[3] >= timestamp])
        elif timestamp == auction[5]:
            best = self.best.value()
            if best is not None:
                yield (*auction[:4], *best[1:])
            self.auction.clear()
            self.best.clear()


def bid_tuples(events):
    return events.filter(lambda e: e["event_type"] == BID).map(
        lambda e: (e["bid"]["auction"], e["bid"]["price"], e["bid"]["bidder"], e["bid"]["dateTime"]),
        output_type=types("llll"),
    )


def auction_tuple(event):
    a = event["auction"]
    return a["id"], a["itemName"], a["seller"], a["category"], a["dateTime"], a["expires"]


def auction_tuple_without_item(event):
    a = event["auction"]
    return a["id"], "", a["seller"], a["category"], a["dateTime"], a["expires"]


def winning_bids(lines, auction_of):
    events = timed_events(lines)
    auctions = events.filter(lambda e: e["event_type"] == AUCTION).map(auction_of, output_type=types("lsllll"))
    keyed = auctions.key_by(lambda a: a[0], key_type=Types.LONG()).connect(
        bid_tuples(events).key_by(lambda b: b[0], key_type=Types.LONG())
    )
    return keyed.process(WinningBid(), output_type=types("lslllll"))


class AveragePrice(KeyedProcessFunction):
    def open(self, runtime_context):
        self.total = runtime_context.get_state(ValueStateDescriptor("total", types("ll")))

    def process_element(self, value, ctx):
        n, total = self.total.value() or (0, 0)
        n, total = n + 1, total + value[1]
        self.total.update((n, total))
        yield f"{value[0]},{n},{total},{total / n}"


def q4(lines, options):
    prices = winning_bids(lines, auction_tuple_without_item).map(lambda won: (won[3], won[4]), output_type=types("ll"))
    return prices.key_by(lambda price: price[0], key_type=Types.LONG()).process(
        AveragePrice(), output_type=Types.STRING()
    )


def q9(lines, options):
    won = winning_bids(lines, auction_tuple)
    return won.map(lambda w: f"{w[0]},{w[1]},{w[2]},{w[3]},{w[4]},{w[5]},{w[6]}", output_type=Types.STRING())


class BidsOfItems(KeyedCoProcessFunction):
    """An auction, and the bids that arrive before the auction."""

    def open(self, runtime_context):
        self.item = runtime_context.get_state(ValueStateDescriptor("item", Types.STRING()))
        self.waiting = runtime_context.get_list_state(ListStateDescriptor("waiting", types("llll")))

    def process_element1(self, value, ctx):
        item = self.item.value()
        if item is None:
            self.waiting.add(value)
        else:
            yield f"{value[0]},{value[2]},{value[1]},{value[3]},{item}"

    def process_element2(self, value, ctx):
        item = f"{value[1]},{value[2]},{value[3]}"
        self.item.update(item)
        for bid in self.waiting.get():
            yield f"{bid[0]},{bid[2]},{bid[1]},{bid[3]},{item}"
        self.waiting.clear()


def q20(lines, options):
    events = events_of(lines)
    auctions = events.filter(lambda e: e["event_type"] == AUCTION and e["auction"]["category"] == CATEGORY).map(
        lambda e: (e["auction"]["id"], e["auction"]["itemName"], e["auction"]["category"], e["auction"]["seller"]),
        output_type=types("lsll"),
    )
    keyed = (
        bid_tuples(events)
        .key_by(lambda b: b[0], key_type=Types.LONG())
        .connect(auctions.key_by(lambda a: a[0], key_type=Types.LONG()))
    )
    return keyed.process(BidsOfItems(), output_type=Types.STRING())


# ---- windows


class CountAndEnd(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield key, next(iter(elements)), context.window().end


class MostBids(KeyedProcessFunction):
    """The auctions with the highest count of a window."""

    def open(self, runtime_context):
        self.most = runtime_context.get_state(ValueStateDescriptor("most", Types.LONG()))
        self.auctions = runtime_context.get_list_state(ListStateDescriptor("auctions", Types.LONG()))

    def process_element(self, value, ctx):
        most = self.most.value()
        if most is None:
            ctx.timer_service().register_event_time_timer(value[2])
        if most is None or value[1] > most:
            self.most.update(value[1])
            self.auctions.update([value[0]])
        elif value[1] == most:
            self.auctions.add(value[0])
        return []

    def on_timer(self, timestamp, ctx):
        most = self.most.value()
        for auction in self.auctions.get():
            yield f"{auction},{most},{timestamp}"
        self.most.clear()
        self.auctions.clear()


def q5(lines, options):
    return (
        timed_bids(lines)
        .map(lambda b: b["auction"], output_type=Types.LONG())
        .key_by(lambda auction: auction, key_type=Types.LONG())
        .window(SlidingEventTimeWindows.of(Time.seconds(10), Time.seconds(2)))
        .aggregate(Count(), CountAndEnd(), accumulator_type=Types.LONG(), output_type=types("lll"))
        .key_by(lambda counted: counted[2], key_type=Types.LONG())
        .process(MostBids(), output_type=Types.STRING())
    )


def higher(a, b):
    return a if (-a[1], a[2], a[3], a[0]) <= (-b[1], b[2], b[3], b[0]) else b


class WithEnd(ProcessWindowFunction):
    def process(self, key, context, elements):
        end = context.window().end
        for element in elements:
            yield (*element, end)


class HighestBid(KeyedProcessFunction):
    def open(self, runtime_context):
        self.highest = runtime_context.get_state(ValueStateDescriptor("highest", types("llllsl")))

    def process_element(self, value, ctx):
        highest = self.highest.value()
        if highest is None:
            ctx.timer_service().register_event_time_timer(value[5])
            self.highest.update(value)
        elif higher(value, highest) is value:
            self.highest.update(value)
        return []

    def on_timer(self, timestamp, ctx):
        b = self.highest.value()
        yield f"{b[0]},{b[1]},{b[2]},{b[3]},{b[4]},{b[5]}"
        self.highest.clear()


def q7(lines, options):
    return (
        timed_bids(lines)
        .map(lambda b: (b["auction"], b["price"], b["bidder"], b["dateTime"], b["extra"]), output_type=types("lllls"))
        .key_by(lambda b: b[0], key_type=Types.LONG())
        .window(TumblingEventTimeWindows.of(Time.seconds(10)))
        .reduce(higher, WithEnd(), output_type=types("llllsl"))
        .key_by(lambda b: b[5], key_type=Types.LONG())
        .process(HighestBid(), output_type=Types.STRING())
    )


def new_sellers(persons, sellers):
    """The lines of a window: ``persons`` are id, name and dateTime."""
    if sellers:
        for person in persons:
            yield f"{person[0]},{person[1]},{person[2] - person[2] % WINDOW_MS}"


class NewSellers(CoGroupFunction):
    def co_group(self, first, second):
        return new_sellers(first, list(second))


class TaggedSellers(ProcessWindowFunction):
    """For PyFlink, which has no co-group: both streams in one, a seller without a name."""

    def process(self, key, context, elements):
        found = list(elements)
        return new_sellers([e for e in found if e[1]], [e for e in found if not e[1]])


def q8(lines, options):
    events = timed_events(lines)
    kind = types("lsl")
    persons = events.filter(lambda e: e["event_type"] == PERSON).map(
        lambda e: (e["person"]["id"], e["person"]["name"], e["person"]["dateTime"]), output_type=kind
    )
    auctions = events.filter(lambda e: e["event_type"] == AUCTION)
    windows = TumblingEventTimeWindows.of(Time.seconds(10))
    if hasattr(persons, "co_group"):
        sellers = auctions.map(lambda e: e["auction"]["seller"], output_type=Types.LONG())
        groups = (
            persons.co_group(sellers)
            .where(lambda p: p[0], Types.LONG())
            .equal_to(lambda seller: seller)
            .window(windows)
        )
        return groups.apply(NewSellers(), output_type=Types.STRING())
    sellers = auctions.map(lambda e: (e["auction"]["seller"], "", 0), output_type=kind)
    keyed = persons.union(sellers).key_by(lambda e: e[0], key_type=Types.LONG())
    return keyed.window(windows).process(TaggedSellers(), output_type=Types.STRING())


def q11(lines, options):
    return (
        timed_bids(lines)
        .map(lambda b: b["bidder"], output_type=Types.LONG())
        .key_by(lambda bidder: bidder, key_type=Types.LONG())
        .window(EventTimeSessionWindows.with_gap(Time.seconds(10)))
        .aggregate(Count(), CountLine(), accumulator_type=Types.LONG(), output_type=Types.STRING())
    )


class ProcessingTimeOrEndOfInput(Trigger):
    """Fire at the end of a window of processing time, and at the last watermark: open windows are dropped otherwise."""

    def on_element(self, element, timestamp, window, ctx):
        ctx.register_processing_time_timer(window.max_timestamp())
        ctx.register_event_time_timer(END_OF_TIME)
        return TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.FIRE_AND_PURGE

    def on_event_time(self, time, window, ctx):
        return TriggerResult.FIRE_AND_PURGE

    def on_merge(self, window, ctx):
        raise NotImplementedError

    def clear(self, window, ctx):
        ctx.delete_processing_time_timer(window.max_timestamp())
        ctx.delete_event_time_timer(END_OF_TIME)


def q12(lines, options):
    return (
        bids_of(lines)
        .map(lambda b: b["bidder"], output_type=Types.LONG())
        .key_by(lambda bidder: bidder, key_type=Types.LONG())
        .window(TumblingProcessingTimeWindows.of(Time.seconds(10)))
        .trigger(ProcessingTimeOrEndOfInput())
        .aggregate(Count(), CountLine(), accumulator_type=Types.LONG(), output_type=Types.STRING())
    )


# ---- a line for each update


class Statistics(KeyedProcessFunction):
    """Total and three ranks; distinct bidders, and of each rank; distinct auctions, and of each rank.

    A map has the ranks that a bidder or an auction was seen in, as bits."""

    def open(self, runtime_context):
        self.numbers = runtime_context.get_state(ValueStateDescriptor("numbers", Types.LIST(Types.LONG())))
        self.bidders = runtime_context.get_map_state(MapStateDescriptor("bidders", Types.LONG(), Types.LONG()))
        self.auctions = runtime_context.get_map_state(MapStateDescriptor("auctions", Types.LONG(), Types.LONG()))

    def count(self, auction, bidder, price, minute=0):
        numbers = self.numbers.value() or [0] * 13
        rank = rank_of(price)
        numbers[0] += 1
        numbers[rank] += 1
        for seen, key, at in ((self.bidders, bidder, 4), (self.auctions, auction, 8)):
            before = seen.get(key) or 0
            if not before:
                numbers[at] += 1
            if not before & 1 << rank:
                numbers[at + rank] += 1
                seen.put(key, before | 1 << rank)
        numbers[12] = max(numbers[12], minute)
        self.numbers.update(numbers)
        return numbers


class OfDay(Statistics):
    def process_element(self, value, ctx):
        numbers = self.count(value[1], value[2], value[3])
        yield f"{day_text(value[0])},{','.join(map(str, numbers[:12]))}"


def q15(lines, options):
    return (
        bids_of(lines)
        .map(lambda b: (b["dateTime"] // DAY_MS, b["auction"], b["bidder"], b["price"]), output_type=types("llll"))
        .key_by(lambda b: b[0], key_type=Types.LONG())
        .process(OfDay(), output_type=Types.STRING())
    )


class OfChannel(Statistics):
    def process_element(self, value, ctx):
        channel, when, auction, bidder, price = value
        numbers = self.count(auction, bidder, price, when % DAY_MS // 60_000)
        hour, minute = divmod(numbers[12], 60)
        yield f"{channel},{day_text(when // DAY_MS)},{hour:02d}:{minute:02d},{','.join(map(str, numbers[:12]))}"


def q16(lines, options):
    return (
        bids_of(lines)
        .map(
            lambda b: (b["channel"], b["dateTime"], b["auction"], b["bidder"], b["price"]),
            output_type=types("sllll"),
        )
        .key_by(lambda b: (b[0], b[1] // DAY_MS), key_type=types("sl"))
        .process(OfChannel(), output_type=Types.STRING())
    )


class OfAuction(KeyedProcessFunction):
    """Total, three ranks, least price, greatest price, sum."""

    def open(self, runtime_context):
        self.numbers = runtime_context.get_state(ValueStateDescriptor("numbers", Types.LIST(Types.LONG())))

    def process_element(self, value, ctx):
        auction, day, price = value
        numbers = self.numbers.value() or [0, 0, 0, 0, price, price, 0]
        numbers[0] += 1
        numbers[rank_of(price)] += 1
        numbers[4] = min(numbers[4], price)
        numbers[5] = max(numbers[5], price)
        numbers[6] += price
        self.numbers.update(numbers)
        total, one, two, three, least, most, added = numbers
        yield f"{auction},{day_text(day)},{total},{one},{two},{three},{least},{most},{added / total},{added}"


def q17(lines, options):
    return (
        bids_of(lines)
        .map(lambda b: (b["auction"], b["dateTime"] // DAY_MS, b["price"]), output_type=types("lll"))
        .key_by(lambda b: (b[0], b[1]), key_type=types("ll"))
        .process(OfAuction(), output_type=Types.STRING())
    )


class LastBid(KeyedProcessFunction):
    def open(self, runtime_context):
        self.last = runtime_context.get_state(ValueStateDescriptor("last", types("ll")))

    def process_element(self, value, ctx):
        auction, bidder, price, when = value
        last = self.last.value()
        if last is None or (when, price) > (last[0], last[1]):
            self.last.update((when, price))
            yield f"{auction},{bidder},{price},{when}"


def four_of_bid(bid):
    return bid["auction"], bid["bidder"], bid["price"], bid["dateTime"]


def q18(lines, options):
    return (
        bids_of(lines)
        .map(four_of_bid, output_type=types("llll"))
        .key_by(lambda b: (b[1], b[0]), key_type=types("ll"))
        .process(LastBid(), output_type=Types.STRING())
    )


class TopTen(KeyedProcessFunction):
    """The ten best as (-price, dateTime, bidder), best first."""

    def open(self, runtime_context):
        self.best = runtime_context.get_state(ValueStateDescriptor("best", Types.LIST(types("lll"))))

    def process_element(self, value, ctx):
        auction, bidder, price, when = value
        best = self.best.value() or []
        bid = (-price, when, bidder)
        rank = sum(1 for other in best if tuple(other) <= bid)
        if rank < 10:
            self.best.update([*best[:rank], bid, *best[rank:9]])
            yield f"{auction},{bidder},{price},{when},{rank + 1}"


def q19(lines, options):
    return (
        bids_of(lines)
        .map(four_of_bid, output_type=types("llll"))
        .key_by(lambda b: b[0], key_type=Types.LONG())
        .process(TopTen(), output_type=Types.STRING())
    )


QUERIES = {
    "q0": q0, "q1": q1, "q2": q2, "q3": q3, "q4": q4, "q5": q5, "q7": q7, "q8": q8, "q9": q9, "q10": q0, "q11": q11, "q12": q12,
    "q13": q13, "q14": q14, "q15": q15, "q16": q16, "q17": q17, "q18": q18, "q19": q19, "q20": q20, "q21": q21, "q22": q22,
}  # fmt: skip


# ---- source, sink, options


def lines_of(env, options):
    if options.kafka_bootstrap:
        source = (
            KafkaSource.builder()
            .set_bootstrap_servers(options.kafka_bootstrap)
            .set_topics(options.kafka_in)
            .set_starting_offsets(KafkaOffsetsInitializer.earliest())
            .set_value_only_deserializer(SimpleStringSchema())
        )
        if not options.kafka_unbounded:
            source.set_bounded(KafkaOffsetsInitializer.latest())
        return env.from_source(source.build(), WatermarkStrategy.no_watermarks(), "events", Types.STRING())
    parts = [f"{options.input}/part-{part}.jsonl" for part in range(options.parallelism)]
    files = FileSource.for_record_stream_format(StreamFormat.text_line_format(), *parts).build()
    return env.from_source(files, WatermarkStrategy.no_watermarks(), "events", Types.STRING())


def sink_of(options):
    if options.kafka_bootstrap:
        serializer = (
            KafkaRecordSerializationSchema.builder()
            .set_topic(options.kafka_out)
            .set_value_serialization_schema(SimpleStringSchema())
            .build()
        )
        return (
            KafkaSink.builder()
            .set_bootstrap_servers(options.kafka_bootstrap)
            .set_record_serializer(serializer)
            .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE)
            .set_transactional_id_prefix(options.kafka_out)
            .set_property("transaction.timeout.ms", "900000")
            .build()
        )
    buckets = MinuteOfBid() if options.query == "q10" else BucketAssigner.base_path_bucket_assigner()
    sink = FileSink.for_row_format(options.output, Encoder.simple_string_encoder())
    return sink.with_bucket_assigner(buckets).build()


def settings_of(options):
    settings = Configuration()
    settings.set_string("state.backend.type", options.backend)
    settings.set_string("execution.checkpointing.incremental", "true")
    settings.set_string("execution.checkpointing.interval", f"{options.interval_ms} ms")
    settings.set_string("execution.checkpointing.storage", "filesystem")
    settings.set_string("execution.checkpointing.dir", Path(options.checkpoints).resolve().as_uri())
    for setting in options.set:
        settings.set_string(*setting.split("=", 1))
    return settings


def options_of(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", choices=QUERIES, required=True)
    parser.add_argument("--input", help="directory of part-*.jsonl and side.csv")
    parser.add_argument("--output", help="directory of the sink")
    parser.add_argument("--checkpoints", required=True)
    parser.add_argument("--parallelism", type=int, default=2, help="as many parts are read")
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    parser.add_argument("--interval-ms", type=int, default=1000)
    parser.add_argument("--side", help="the side input of q13, if it is not in the input directory")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a setting; may be repeated")
    parser.add_argument("--kafka-bootstrap", help="servers; then topics are read and written, and no files")
    parser.add_argument("--kafka-in")
    parser.add_argument("--kafka-out")
    parser.add_argument("--kafka-unbounded", action="store_true")
    return parser.parse_args(arguments)


def build(options):
    """Return the environment with the program of the query."""
    env = StreamExecutionEnvironment.get_execution_environment(settings_of(options))
    env.set_parallelism(options.parallelism)
    QUERIES[options.query](lines_of(env, options), options).sink_to(sink_of(options))
    return env


def main():
    options = options_of()
    # The JVM of PyFlink starts `python` from the PATH to find PyFlink's modules: it must be this environment's.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    env = build(options)
    start = time.perf_counter()
    env.execute(f"nexmark-{options.query}")
    seconds = time.perf_counter() - start
    records = None
    if options.input and (mark := Path(options.input) / ".nexmark").exists():
        records = json.loads(mark.read_text())["events"]
    print(json.dumps({"query": options.query, "seconds": round(seconds, 3), "records": records}))


if __name__ == "__main__":
    main()

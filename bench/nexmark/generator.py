"""Make Nexmark events as JSON lines, whole batches at once with numpy.

Event ``n`` is a function of the seed and ``n`` alone: any slice of numbers gives the same bytes as a part of any larger slice. The
proportions, identifiers and hot auctions, bidders and sellers follow the public Nexmark definition; all code is our own.

How: ``lcm(50, step)`` consecutive numbers have a fixed order of persons, auctions and bids, so a batch is an array of such periods.
Every field has a fixed place and its largest width. Unused bytes are zero and are removed at the end. The texts come from tables.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

PERSONS, AUCTIONS, BIDS = 1, 3, 46
PERIOD = PERSONS + AUCTIONS + BIDS
FIRST_ID = 1000
"""Of persons and auctions."""
FIRST_CATEGORY, CATEGORIES = 10, 5
HOT_AUCTIONS, HOT_PERSONS = 2, 4
"""All but one of so many bids go to the hot auction; come from the hot bidder, and auctions from the hot seller."""
HOT_STEP = 100
"""Every hundredth auction or person is hot, until the next one is."""
IN_FLIGHT_AUCTIONS, ACTIVE_PERSONS = 100, 1000
LEAD = 10
"""Bids may name auctions and persons that are so far in the future."""
EVENTS_A_MS = 10
BASE_TIME = 1_436_918_390_000
"""2015-07-14 23:59:50 UTC: the day changes after 100,000 events."""
SIDE_KEYS = 10_000
CHANNELS = 10_000
HOT_CHANNELS = ["Google", "Facebook", "Baidu", "Apple"]
SIZES = {"person": 200, "auction": 500, "bid": 100}
"""Average bytes of an event as Nexmark counts them: 8 for a number, no names of members, a bid without channel and url."""
AUCTION_MS = 2 * (IN_FLIGHT_AUCTIONS * PERIOD // AUCTIONS) // EVENTS_A_MS
"""The longest time from the start of an auction to its end, so that about ``IN_FLIGHT_AUCTIONS`` are open."""
BATCH = 20_000
"""Events that are made together. Their buffer of 7 MB gave the best speed of 2,000 to 100,000 events."""
FIRST_NAMES = ["Peter", "Paul", "Luke", "John", "Saul", "Vicky", "Kate", "Julie", "Sarah", "Deiter", "Walter"]
LAST_NAMES = ["Shultz", "Abrams", "Spencer", "White", "Bartels", "Walton", "Smith", "Jones", "Noris"]
CITIES = [
    "Phoenix",
    "Los Angeles",
    "San Francisco",
    "Boise",
    "Portland",
    "Bend",
    "Redmond",
    "Seattle",
    "Kent",
    "Cheyenne",
]
STATES = ["AZ", "CA", "ID", "OR", "WA", "WY"]

Array = Any
_U = np.uint64


def mixed(numbers: Array, salt: int) -> Array:
    """Return 64 random bits for each number (the finalizer of SplitMix64)."""
    x = numbers.astype(_U) * _U(0x9E3779B97F4A7C15) + _U(salt * 0xD1342543DE82EF95 & (1 << 64) - 1)
    x ^= x >> _U(30)
    x *= _U(0xBF58476D1CE4E5B9)
    x ^= x >> _U(27)
    x *= _U(0x94D049BB133111EB)
    x ^= x >> _U(31)
    return x


def below(bits: Array, shift: int, width: int, limit: Any) -> Array:
    """Return a number in ``[0, limit)`` from ``width`` of the random bits."""
    drawn = (bits >> _U(shift)) & _U((1 << width) - 1)
    return ((drawn * np.asarray(limit).astype(_U)) >> _U(width)).astype(np.int64)


def _texts(words: list[str], width: int | None = None) -> Array:
    """Return texts as rows of bytes, with zero bytes after their end."""
    encoded = [word.encode() for word in words]
    width = width or max(map(len, encoded))
    return np.frombuffer(b"".join(word.ljust(width, b"\0") for word in encoded), np.uint8).reshape(-1, width)


def _letters(count: int, salt: int, *, spaced: bool = False) -> Array:
    """Return random letters; with ``spaced`` one of 13 is a space."""
    bits = mixed(np.arange(count), salt)
    letters = (97 + below(bits, 0, 16, 26)).astype(np.uint8)
    if spaced:
        letters[below(bits, 16, 16, 13) == 0] = 32
    return letters


def _words(count: int, low: int, high: int, salt: int, *, spaced: bool = False) -> list[str]:
    """Return ``count`` texts of ``low`` to ``high`` letters, which do not begin or end with a space."""
    lengths = low + below(mixed(np.arange(count), salt + 1), 0, 32, high - low + 1)
    ends = np.cumsum(lengths)
    text = bytes(_letters(int(ends[-1]), salt, spaced=spaced)).decode()
    found = [text[end - length : end] for end, length in zip(ends.tolist(), lengths.tolist(), strict=True)]
    return [word.strip() or "x" for word in found]


def _digit_tables() -> tuple[Array, Array]:
    """Return the upper and the lower four digits of a number as one word each. The upper zero is empty.

    The lower table has 20,000 places: from 10,000 on for numbers below 10,000, without leading zeros."""
    padded = b"".join(b"%04d" % n for n in range(10_000))
    bare = b"".join((b"%d" % n).rjust(4, b"\0") for n in range(10_000))
    upper = np.frombuffer(bytes(4) + bare[4:], np.uint32)
    return upper, np.concatenate([np.frombuffer(padded, np.uint32), np.frombuffer(bare, np.uint32)])


UPPER, LOWER = _digit_tables()


def digits(numbers: Array) -> Array:
    """Return numbers below 10**8 as two words of four characters, with zero bytes instead of leading zeros."""
    upper, lower = np.divmod(numbers.astype(np.uint32), np.uint32(10_000))
    return np.stack([UPPER[upper], LOWER[lower + np.uint32(10_000) * (upper == 0)]], axis=-1)


def times(milliseconds: Array) -> Array:
    """Return the last twelve of thirteen digits of epoch milliseconds, as three words. The first digit is 1 until 2033."""
    upper, lower = np.divmod(milliseconds, 10_000)
    upper, middle = np.divmod(upper, 10_000)
    return np.stack([LOWER[upper % 10_000], LOWER[middle], LOWER[lower]], axis=-1)


@dataclass(frozen=True)
class Layout:
    """A line with only its fixed parts, and the place and width of every other part."""

    line: bytes
    fields: dict[str, tuple[int, int]]


def _layout(*parts: bytes | tuple[str, int]) -> Layout:
    """Put a line together. A part is fixed bytes, or a name and its width."""
    fields, line = {}, b""
    for part in parts:
        if isinstance(part, tuple):
            fields[part[0]] = (len(line), part[1])
            line += bytes(part[1])
        else:
            line += part
    return Layout(line, fields)


def _whole(rows: Array) -> Array:
    """Return the last dimension of an array as one value of that many bytes: numpy copies such a value at once."""
    rows = np.ascontiguousarray(rows)
    return rows.view(np.dtype((np.void, rows.shape[-1] * rows.itemsize)))[..., 0]


class Generator:
    """Make the events of a seed. An object keeps its buffers, so each thread needs its own."""

    def __init__(self, seed: int = 1) -> None:
        self.seed = seed
        salt = seed << 8
        self._salt = salt
        coarse, fine = (np.array([math.pow(10, 6 * n / 4096**k) for n in range(4096)]) for k in (1, 2))
        self._prices = coarse * 100, fine
        self._channels = _whole(_texts(_channel_urls(salt)))
        self._extra = (
            _whole(_letters(2048 * 40, salt + 10).reshape(2048, 40)),
            _whole(_texts(_words(4096, 14, 41, salt + 12), 41)),
        )
        self._pool = _letters(1 << 16, salt + 14)
        self._words = _texts(_words(4096, 3, 6, salt + 16))
        self._items = _texts(_words(4096, 3, 19, salt + 18, spaced=True))
        self._descriptions = _texts(_words(4096, 3, 99, salt + 20, spaced=True))
        self._names = _texts([f"{first} {last}" for first in FIRST_NAMES for last in LAST_NAMES])
        self._cities, self._states = _texts(CITIES), _texts(STATES)
        self._batches: dict[tuple[int, int, int], _Periods] = {}
        self._layouts = {"person": self._person_layout(), "auction": self._auction_layout(), "bid": self._bid_layout()}
        self._fill = {"person": self._fill_persons, "auction": self._fill_auctions, "bid": self._fill_bids}

    def lines(self, start: int, end: int, step: int = 1) -> Iterator[bytes]:
        """Yield the lines of ``range(start, end, step)`` in order, as bytes of about ``BATCH`` whole lines each."""
        numbers = range(start, end, step)
        period = math.lcm(PERIOD, step)
        a_period = period // step
        residue = start % step
        whole = max(1, BATCH // a_period)
        first = start - start % period
        for at in range(first, end, whole * period):
            # Lines of a batch are those of at, at + step ...: some of the first and of the last batch are not wanted.
            count = min(whole, -(-(end - at) // period))
            data = self._periods(at, count, step, residue)
            made = range(at + residue, at + residue + count * period, step)
            front = max(0, -((made[0] - numbers[0]) // step)) if numbers else 0
            back = max(0, (made[-1] - numbers[-1]) // step) if numbers else len(made)
            yield _without(data, front, back)

    def _periods(self, at: int, count: int, step: int, residue: int) -> bytes:
        key = (count, step, residue)
        if key not in self._batches:
            if len(self._batches) > 4:
                self._batches.clear()
            self._batches[key] = _Periods(count, step, residue, self._layouts)
        batch = self._batches[key]
        for kind, fields, places in batch.runs:
            self._fill[kind](fields, at + batch.starts[:, None] + places[None, :])
        flat = batch.buffer.reshape(-1)
        return flat[flat != 0].tobytes()

    # ---- the three kinds

    def _bid_layout(self) -> Layout:
        return _layout(
            b'{"event_type":2,"bid":{"auction":', ("auction", 8), b',"bidder":', ("bidder", 8), b',"price":', ("price", 8),
            b',"channel":"', ("channel", self._channels.itemsize), b'","dateTime":1', ("time", 12),
            b',"extra":"', ("extra", 40), ("more", 41), b'"}}\n',
        )  # fmt: skip

    def _auction_layout(self) -> Layout:
        return _layout(
            b'{"event_type":1,"auction":{"id":', ("id", 8), b',"itemName":"', ("item", self._items[0].size),
            b'","description":"', ("description", self._descriptions[0].size), b'","initialBid":', ("initial", 8),
            b',"reserve":', ("reserve", 8), b',"dateTime":1', ("time", 12), b',"expires":1', ("expires", 12),
            b',"seller":', ("seller", 8), b',"category":', ("category", 2), b',"extra":"', ("extra", 560), b'"}}\n',
        )  # fmt: skip

    def _person_layout(self) -> Layout:
        return _layout(
            b'{"event_type":0,"person":{"id":', ("id", 8), b',"name":"', ("name", self._names[0].size),
            b'","emailAddress":"', ("user", 6), b"@", ("host", 6), b'.com","creditCard":"',
            ("card1", 4), b" ", ("card2", 4), b" ", ("card3", 4), b" ", ("card4", 4),
            b'","city":"', ("city", self._cities[0].size), b'","state":"', ("state", 2), b'","dateTime":1', ("time", 12),
            b',"extra":"', ("extra", 200), b'"}}\n',
        )  # fmt: skip

    def _fill_bids(self, fields: _Fields, n: Array) -> None:
        first, second = mixed(n, self._salt), mixed(n, self._salt + 1)
        epoch = n // PERIOD
        last_auction = epoch * AUCTIONS + AUCTIONS - 1
        oldest = np.maximum(last_auction - IN_FLIGHT_AUCTIONS, 0)
        usual = oldest + below(first, 2, 20, last_auction - oldest + 1 + LEAD)
        hot = below(first, 0, 1, HOT_AUCTIONS) > 0
        auction = np.where(hot, last_auction // HOT_STEP * HOT_STEP, usual)
        fields["auction"] = _whole(digits(auction + FIRST_ID))
        hot = below(first, 22, 2, HOT_PERSONS) > 0
        bidder = np.where(hot, epoch // HOT_STEP * HOT_STEP + 1, _person(first, 24, epoch))
        fields["bidder"] = _whole(digits(bidder + FIRST_ID))
        fields["price"] = _whole(digits(self._price(second, 0)))
        named = below(second, 24, 1, 2) > 0
        channel = np.where(named, below(second, 25, 2, 4), 4 + below(second, 27, 18, CHANNELS))
        fields["channel"] = self._channels.take(channel)
        fields["time"] = _whole(times(BASE_TIME + n // EVENTS_A_MS))
        fields["extra"] = self._extra[0].take(below(second, 45, 11, 2048))
        fields["more"] = self._extra[1].take(below(first, 48, 12, 4096))

    def _fill_auctions(self, fields: _Fields, n: Array) -> None:
        first, second, third = (mixed(n, self._salt + k) for k in (2, 3, 4))
        epoch = n // PERIOD
        time = BASE_TIME + n // EVENTS_A_MS
        fields["id"] = _whole(digits(epoch * AUCTIONS + n % PERIOD - PERSONS + FIRST_ID))
        item = self._items.take(below(first, 0, 12, 4096), axis=0)
        description = self._descriptions.take(below(first, 12, 12, 4096), axis=0)
        fields["item"], fields["description"] = _whole(item), _whole(description)
        initial = self._price(second, 0)
        fields["initial"] = _whole(digits(initial))
        fields["reserve"] = _whole(digits(np.minimum(initial + self._price(second, 24), 99_999_999)))
        fields["time"] = _whole(times(time))
        fields["expires"] = _whole(times(time + 1 + below(first, 24, 20, AUCTION_MS)))
        hot = below(first, 44, 2, HOT_PERSONS) > 0
        seller = np.where(hot, epoch // HOT_STEP * HOT_STEP, _person(third, 0, epoch))
        fields["seller"] = _whole(digits(seller + FIRST_ID))
        category = FIRST_CATEGORY + below(first, 46, 8, CATEGORIES)
        fields["category"] = _whole((48 + np.stack([category // 10, category % 10], axis=-1)).astype(np.uint8))
        used = 6 * 8 + (item != 0).sum(-1) + (description != 0).sum(-1)
        fields["extra"] = self._extra_text(third, SIZES["auction"] - used, 560)

    def _fill_persons(self, fields: _Fields, n: Array) -> None:
        first, second = mixed(n, self._salt + 5), mixed(n, self._salt + 6)
        fields["id"] = _whole(digits(n // PERIOD + FIRST_ID))
        name = self._names.take(below(first, 0, 16, len(self._names)), axis=0)
        user, host = (self._words.take(below(first, shift, 12, 4096), axis=0) for shift in (16, 28))
        city = self._cities.take(below(first, 40, 8, len(CITIES)), axis=0)
        for field, text in (("name", name), ("user", user), ("host", host), ("city", city)):
            fields[field] = _whole(text)
        fields["state"] = _whole(self._states.take(below(first, 48, 8, len(STATES)), axis=0))
        for place in range(4):
            fields[f"card{place + 1}"] = _whole(LOWER[below(second, 16 * place, 16, 10_000)][..., None])
        fields["time"] = _whole(times(BASE_TIME + n // EVENTS_A_MS))
        used = 8 + 19 + 2 + 5 + sum((text != 0).sum(-1) for text in (name, user, host, city))
        fields["extra"] = self._extra_text(mixed(n, self._salt + 7), SIZES["person"] - used, 200)

    def _price(self, bits: Array, shift: int) -> Array:
        coarse, fine = self._prices
        low = (bits >> _U(shift)) & _U(4095)
        high = (bits >> _U(shift + 12)) & _U(4095)
        return np.minimum(np.rint(coarse[high] * fine[low]), 99_999_999).astype(np.uint32)

    def _extra_text(self, bits: Array, wanted: Array, width: int) -> Array:
        """Return ``wanted`` letters, a fifth more or less."""
        delta = np.rint(wanted * 0.2).astype(np.int64)
        length = np.clip(wanted - delta + below(bits, 24, 16, 2 * delta), 0, width)
        at = below(bits, 40, 24, len(self._pool) - width)
        windows = np.lib.stride_tricks.sliding_window_view(self._pool, width)
        return _whole(windows[at] * (np.arange(width) < length[..., None]))


class _Fields:
    """The lines of a run in all periods: assigning a field writes it into the buffer."""

    def __init__(self, buffer: Array, at: int, lines: int, layout: Layout) -> None:
        self._views: dict[str, Array] = {}
        for name, (offset, width) in layout.fields.items():
            kind = np.dtype((np.void, width))
            strides = (buffer.strides[0], len(layout.line))
            self._views[name] = np.ndarray((len(buffer), lines), kind, buffer, at + offset, strides)

    def __setitem__(self, name: str, values: Array) -> None:
        self._views[name][...] = values


class _Periods:
    """The buffer of a batch: ``count`` periods, and for each kind its runs of neighbouring lines within a period."""

    def __init__(self, count: int, step: int, residue: int, layouts: dict[str, Layout]) -> None:
        period = math.lcm(PERIOD, step)
        runs = [(kind, list(run)) for kind, run in itertools.groupby(range(residue, period, step), kind_of)]
        template = np.frombuffer(b"".join(layouts[kind].line * len(run) for kind, run in runs), np.uint8)
        self.buffer = np.tile(template, (count, 1))
        self.starts = np.arange(count, dtype=np.int64) * period
        self.runs: list[tuple[str, _Fields, Array]] = []
        at = 0
        for kind, run in runs:
            self.runs.append((kind, _Fields(self.buffer, at, len(run), layouts[kind]), np.array(run, dtype=np.int64)))
            at += len(layouts[kind].line) * len(run)


def kind_of(number: int) -> str:
    """Return the kind of an event: person, auction or bid."""
    place = number % PERIOD
    return "person" if place < PERSONS else "auction" if place < PERSONS + AUCTIONS else "bid"


def _person(bits: Array, shift: int, epoch: Array) -> Array:
    """Return one of the persons that were active last, or of those to come."""
    active = np.minimum(epoch + 1, ACTIVE_PERSONS)
    return epoch + 1 - active + below(bits, shift, 24, active + LEAD)


def _channel_urls(salt: int) -> list[str]:
    """Return ``channel","url":"address`` for the four hot channels and all others. A channel always has the same address."""
    words = _words(3 * (CHANNELS + 4), 3, 4, salt + 22)
    has_id = below(mixed(np.arange(CHANNELS), salt + 24), 0, 16, 10) > 0
    found = []
    for n in range(CHANNELS + 4):
        address = f"https://www.nexmark.com/{words[3 * n]}/{words[3 * n + 1]}/{words[3 * n + 2]}/item.htm?query=1"
        if n < 4:
            found.append(f'{HOT_CHANNELS[n]}","url":"{address}')
            continue
        number = n - 4
        reverse = int(f"{number:032b}"[::-1], 2)
        identifier = f"&channel_id={min(reverse, (1 << 32) - reverse)}" if has_id[number] else ""
        found.append(f'channel-{number}","url":"{address}{identifier}')
    return found


def _without(data: bytes, front: int, back: int) -> bytes:
    """Return lines without the first and the last of them."""
    begin, end = 0, len(data)
    for _ in range(front):
        begin = data.index(b"\n", begin) + 1
    for _ in range(back):
        end = data.rindex(b"\n", 0, end - 1) + 1 if data.count(b"\n", begin, end) > 1 else begin
    return data[begin:end]


def side_input() -> bytes:
    """Return the side input of q13: ``key,value`` for every key."""
    return b"".join(b"%d,value-%d\n" % (key, key * 7919 % SIDE_KEYS) for key in range(SIDE_KEYS))

"""Find the keys that take a large part of a keyed chain's records, by a look at a few keys of each chunk.

A chunk of 4,096 records costs a look at some 65 keys, a small chunk at 4 keys: a few nanoseconds a record. The distance between
two looked-at keys is a prime number, and the first of them is another one in each chunk: keys that come in turn are not mistaken
for heavy ones. The counts are estimates.
"""

from __future__ import annotations

import hashlib
import heapq
from operator import itemgetter
from typing import Any, NamedTuple

from tidegate.common import options
from tidegate.operators.contracts.batch import Keys
from tidegate.operators.loop.blame import reprlib_repr
from tidegate.state.keys import visible

_LEAST, _SHARE = 4, 64
"""Keys of a chunk that are looked at: at least, and one of how many."""
_MOST_COUNTED, _KEPT = 1024, 256
"""How many keys are counted at a time; how many of them stay, at most, when there are more."""
_SENT, _WORTH = 3, 0.05
"""How many keys are sent to the driver at most, and from which part of the subtask's records on."""
_LONGEST = 80


def _primes(most: int) -> list[int]:
    """Return for every number the largest prime up to it; 1 for 0 and 1."""
    found, latest = [1, 1], 1
    for number in range(2, most + 1):
        if all(number % divisor for divisor in range(2, int(number**0.5) + 1)):
            latest = number
        found.append(latest)
    return found


_PRIME = _primes(_SHARE)


class Heavy(NamedTuple):
    """Hold the heaviest keys of a subtask in a round: texts with estimated numbers of records, of ``records`` in all."""

    records: int
    keys: tuple[tuple[str, int], ...]


class KeySampler:
    """Count keys in one subtask and round. ``shown``: a value of ``tidegate.metrics.heavy-keys``; ``salt``: for hidden keys."""

    def __init__(self, shown: str = options.HEAVY_KEYS.default, salt: str | None = None) -> None:
        self._shown, self._salt = shown, salt or ""
        self._counts: dict[Any, int] = {}
        self._records = self._turn = 0

    def look(self, keys: Keys) -> None:
        """Look at some keys of a chunk. All keys are in the engine's form, so they can be hashed."""
        records, counts = len(keys), self._counts
        step = _PRIME[min(records // max(_LEAST, records // _SHARE), _SHARE)] if records else 1
        self._records += records
        self._turn += 1
        for key in keys[self._turn % step :: step]:
            counts[key] = counts.get(key, 0) + step
        if len(counts) > _MOST_COUNTED:
            self._forget_rare()

    def _forget_rare(self) -> None:
        """Drop the keys that were seen least: cheaper than to sort all keys, and a heavy key is soon seen often."""
        least = min(self._counts.values())
        while len(self._counts) > _KEPT:
            self._counts = {key: count for key, count in self._counts.items() if count > least}
            least *= 2

    def heaviest(self) -> Heavy | None:
        """Return what the driver gets. None: there were no keys."""
        if not self._records:
            return None
        least = self._records * _WORTH
        heaviest = heapq.nlargest(_SENT, self._counts.items(), key=itemgetter(1))
        return Heavy(self._records, tuple((self._text(key), count) for key, count in heaviest if count >= least))

    def _text(self, key: Any) -> str:
        text = reprlib_repr(visible(key))
        if self._shown == "hide":
            hidden = hashlib.blake2b(text.encode(errors="replace"), digest_size=4, key=self._salt.encode()[:64])
            return f"hidden key {hidden.hexdigest()}"
        return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

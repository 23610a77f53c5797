"""Lanes in the job's own thread: a seed decides when the checkpoint lane continues, between rounds or in the middle of one."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Iterator

from tidegate.runtime.inbox import Event, Inbox, LaneName

_BESIDE = (LaneName.CHECKPOINTS, LaneName.SAVEPOINTS, LaneName.PUBLICATIONS)


class SimulatedLanes:
    """The same seed gives the same interleaving. A crash (any BaseException) goes up through whatever runs: all lanes end with it.

    How eager the checkpoint lane is, before a round and inside one, is the seed's too.
    """

    def __init__(self, inbox: Inbox, seed: int) -> None:
        self._inbox = inbox
        self._random = random.Random(seed)
        self._before = self._random.choice((0.05, 0.3, 0.7))
        self._between = self._random.choice((0.05, 0.3, 0.6, 0.9))
        self._todo: dict[LaneName, deque[Iterator[Event | None]]] = {lane: deque() for lane in LaneName}
        self._inside: set[LaneName] = set()
        self.deepest = 0
        """Most that has waited in the checkpoint lane at once."""

    def submit(self, lane: LaneName, work: Iterator[Event | None]) -> None:
        self._todo[lane].append(work)
        self.deepest = max(self.deepest, len(self._todo[LaneName.CHECKPOINTS]))

    def aside(self, act: Callable[[], None]) -> None:
        act()

    @property
    def overlap(self) -> bool:
        """The checkpoint lane works in the middle of a round, right now."""
        return self._inside == {LaneName.ROUNDS, LaneName.CHECKPOINTS}

    @property
    def storing(self) -> bool:
        """The checkpoint lane has something to do."""
        return bool(self._todo[LaneName.CHECKPOINTS])

    @property
    def busy(self) -> bool:
        return any(self._todo.values())

    def step(self) -> bool:
        beside = [lane for lane in _BESIDE if self._todo[lane]]
        if self._todo[LaneName.ROUNDS] and not (beside and self._random.random() < self._before):
            self._advance(LaneName.ROUNDS)
        elif beside:
            self._advance(self._one_of(beside))
        else:
            return False
        return True

    def _one_of(self, ready: list[LaneName]) -> LaneName:
        return ready[0] if len(ready) == 1 else self._random.choice(ready)

    def between_tasks(self) -> None:
        """The engine calls this while a round runs: time for the other lane."""
        while ready := [lane for lane in _BESIDE if self._todo[lane]]:
            if self._random.random() >= self._between or self._inside.intersection(_BESIDE):
                return
            self._advance(self._one_of(ready))

    def _advance(self, lane: LaneName) -> None:
        work = self._todo[lane][0]
        self._inside.add(lane)
        try:
            event = next(work)
        except StopIteration:
            self._todo[lane].popleft()
            return
        finally:
            self._inside.discard(lane)
        if event is not None:
            self._inbox.post(event)

    def close(self) -> None:
        return None

"""The inbox of a job: what happens to it, in the order in which its one thread takes it."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Protocol

from tidegate.base.clock import FOREVER, Clock
from tidegate.base.errors import FencedError
from tidegate.operators.flow.rows import Ack


@dataclass(frozen=True)
class Event:
    """Something the job's thread has to hear of."""


@dataclass(frozen=True)
class RoundEnded(Event):
    """The round lane: acks, or why there are none."""

    round: int
    seconds: float
    acks: list[Ack] = field(default_factory=list)
    error: Exception | None = None


@dataclass(frozen=True)
class Woken(Event):
    """A timer: it is time to look at the sources again."""


@dataclass(frozen=True)
class LeaseLost(Event):
    """The heartbeat of a lease (its token) has found a newer attempt."""

    lease: int
    error: FencedError


@dataclass(frozen=True)
class LaneBroken(Event):
    """What a lane did raised, and was not meant to."""

    error: BaseException


class Lane(Enum):
    """What runs beside the job's thread. Work of one lane runs one after the other, in order."""

    ROUNDS = "rounds"
    CHECKPOINTS = "checkpoints"
    SAVEPOINTS = "savepoints"
    PUBLICATIONS = "publications"


Work = Iterator[Event | None]
"""What a lane does: the events it yields are posted. ``None``: another lane may go first; only the simulation cares."""


class Lanes(Protocol):
    """Where work runs: in threads, or in a simulation in the job's own thread, in an order given by a seed."""

    def submit(self, lane: Lane, work: Work) -> None:
        """Run it behind what the lane has to do already."""
        ...

    def aside(self, act: Any) -> None:
        """Call something short that may still block (a heartbeat, a cancellation): not in the caller's thread, at once."""
        ...

    @property
    def busy(self) -> bool:
        """Whether any lane has something to do."""
        ...

    def step(self) -> bool:
        """The job's thread has nothing to do: go on a step, if the lanes need it for that. False: they do not."""
        ...

    def close(self) -> None:
        """The job is over, and all work done."""
        ...


class Inbox:
    """Anybody posts, the job's thread takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque()
        self._arrived = threading.Event()

    def post(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    def wake(self) -> None:
        """Whether the lanes are busy has changed: look again."""
        self._arrived.set()

    def take(self, lanes: Lanes) -> Event:
        """The next event. While the lanes work it is they who will post, so a manual clock stands still; else time passes."""
        while True:
            self._arrived.clear()
            if self._events:
                return self._events.popleft()
            if lanes.step():
                continue
            if lanes.busy:
                self._arrived.wait()
            else:
                self._clock.wait(self._arrived, FOREVER)

    def take_all(self) -> list[Event]:
        """What is left, when nobody will take events any more."""
        left = list(self._events)
        self._events.clear()
        return left

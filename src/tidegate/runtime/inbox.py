"""The inbox of a job and the lanes that post to it.

One thread, the job's, takes events from the inbox one after the other and decides. Whatever takes long, or may block, runs in a
lane beside that thread, and reports with events.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

from tidegate.base.clock import FOREVER, Clock
from tidegate.base.errors import FencedError

# -- events --------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Event:
    """An event for the job's thread."""


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
    """The work of a lane raised an error that ``Lane`` does not catch."""

    error: BaseException


@dataclass(frozen=True)
class WorkEnded(Event):
    """The last event of every work. ``result``: what the work returned, or ``Dropped``, or ``Broke``."""

    lane: Lane
    seconds: float
    result: Any


@dataclass(frozen=True)
class Dropped:
    """The work never began."""


@dataclass(frozen=True)
class Broke:
    """The work raised. The attempt fails with the error, and nothing that waits in the lane begins."""

    error: Exception | SystemExit


class Inbox:
    """The queue of events. Any thread posts, the job's thread takes."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._events: deque[Event] = deque()
        self._arrived = threading.Event()

    def post(self, event: Event) -> None:
        self._events.append(event)
        self._arrived.set()

    def wake(self) -> None:
        """Wake the job's thread, because the lanes have become busy or idle."""
        self._arrived.set()

    def take(self, lanes: Lanes) -> Event:
        """Return the next event. While the lanes work they will post, so a manual clock stands still; otherwise time passes."""
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
        """Return the remaining events. No events are taken afterwards."""
        left = list(self._events)
        self._events.clear()
        return left


# -- lanes ---------------------------------------------------------------------------------------------------------------


class LaneName(Enum):
    """The lanes. The pieces of work of one lane run one after the other, in order."""

    ROUNDS = "rounds"
    CHECKPOINTS = "checkpoints"
    SAVEPOINTS = "savepoints"
    PUBLICATIONS = "publications"


Work = Generator[Event | None, None, Any] | Callable[[], Any]
"""What a lane does. What it returns is the result of ``WorkEnded``. The events a generator yields are posted; ``None``: another
lane may go first, which only the simulation cares about."""


class Lanes(Protocol):
    """Where work runs: in threads, or in a simulation in the job's own thread, in an order given by a seed."""

    def submit(self, lane: LaneName, work: Iterator[Event | None]) -> None:
        """Run the work after the earlier work of the lane."""
        ...

    def aside(self, act: Any) -> None:
        """Call something short that may still block (a heartbeat, a cancellation): not in the caller's thread, at once."""
        ...

    @property
    def busy(self) -> bool:
        """Whether any lane has something to do."""
        ...

    def step(self) -> bool:
        """The job's thread has nothing to do: continue a step, if the lanes need that thread for it. False: they do not."""
        ...

    def close(self) -> None:
        """Close the lanes: the job has ended, and all work is done."""
        ...


@dataclass
class Gate:
    """What keeps work from beginning; lanes may share one. Each field is only ever set, and by one side: no lock is needed."""

    dropping: bool = False
    """The attempt ends: work that may be dropped does not begin. The job's thread sets it."""
    broken: bool = False
    """Work has raised: no other begins. A lane sets it."""


class Lane:
    """One lane of an attempt, as the job's thread sees it. Every work that is submitted ends with one ``WorkEnded``."""

    def __init__(self, lanes: Lanes, name: LaneName, clock: Clock, gate: Gate | None = None) -> None:
        self.name = name
        self._lanes, self._clock = lanes, clock
        self._gate = gate or Gate()
        self.outstanding = 0
        self.seconds = 0.0
        """How long the lane has worked since this value was last set to 0."""

    @property
    def at_rest(self) -> bool:
        return self.outstanding == 0

    @property
    def is_dropping(self) -> bool:
        """For work that takes long: whether it should give up."""
        return self._gate.dropping or self._gate.broken

    def submit(self, work: Work, *, may_drop: bool = False) -> None:
        """``may_drop``: the work need not begin if the attempt ends first."""
        self._lanes.submit(self.name, self._guarded(work, may_drop))
        self.outstanding += 1  # only once the work is in the lane: the end of an attempt waits for all that is

    def ended(self, event: WorkEnded) -> None:
        """Count a piece of work as ended, before its result is handled."""
        self.outstanding -= 1
        self.seconds += event.seconds

    def drop(self) -> None:
        """Drop the work that may be dropped and has not begun: the attempt ends."""
        self._gate.dropping = True

    def _guarded(self, work: Work, may_drop: bool) -> Iterator[Event | None]:
        started = self._clock.monotonic()
        if self._gate.broken or (may_drop and self._gate.dropping):
            yield WorkEnded(self, 0.0, Dropped())
            return
        try:
            result = (yield from work) if isinstance(work, Generator) else work()
        except (Exception, SystemExit) as error:
            # SystemExit: a user's committer may exit, and must not end only this thread
            self._gate.broken = True
            result = Broke(error)
        yield WorkEnded(self, self._clock.monotonic() - started, result)


class ThreadedLanes:
    """One thread a lane, from its first work to ``close``: what a lane does is done in one thread, for Spark's sake and the
    sinks'. All of them are daemons: a driver whose main thread ends does not wait for storage."""

    def __init__(self, inbox: Inbox, name: str) -> None:
        self._inbox, self._name = inbox, name
        self._lock = threading.Lock()
        self._undone = 0
        self._queues: dict[LaneName, queue.SimpleQueue[Iterator[Event | None] | None]] = {}

    def submit(self, lane: LaneName, work: Iterator[Event | None]) -> None:
        with self._lock:
            if lane not in self._queues:
                todo: queue.SimpleQueue[Iterator[Event | None] | None] = queue.SimpleQueue()
                name = f"tidegate-{lane.value}-{self._name}"
                # First of all: a system that has no thread left raises here, and then there is no lane and no work in it.
                threading.Thread(target=self._run, args=(todo,), name=name, daemon=True).start()
                self._queues[lane] = todo
            self._undone += 1
            self._queues[lane].put(work)

    def _run(self, todo: queue.SimpleQueue[Iterator[Event | None] | None]) -> None:
        while (work := todo.get()) is not None:
            try:
                for event in work:
                    if event is not None:
                        self._inbox.post(event)
            except BaseException as error:  # the job's thread decides what it means
                self._inbox.post(LaneBroken(error))
            with self._lock:
                self._undone -= 1
            self._inbox.wake()

    def aside(self, act: Callable[[], None]) -> None:
        threading.Thread(target=act, name=f"tidegate-aside-{self._name}", daemon=True).start()

    @property
    def busy(self) -> bool:
        return self._undone > 0

    def step(self) -> bool:
        return False

    def close(self) -> None:
        with self._lock:
            for todo in self._queues.values():
                todo.put(None)
            self._queues.clear()

"""The state after the accepted rounds: the only state that counts, and the content of a checkpoint."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, NamedTuple

import msgspec

from tidegate.base.errors import RoundError
from tidegate.checkpoint.metadata import OperatorState
from tidegate.graph.plan import Chain, JobGraph, Operator
from tidegate.operators.contracts.source import SourcePlan, SplitInterval
from tidegate.operators.flow.rows import Ack, RoundContext, Status, TaskPlan, seen_tokens
from tidegate.runtime.engine import RoundPlan
from tidegate.runtime.planner import Merge
from tidegate.state import materialize
from tidegate.state.in_flight import InFlightLog, InFlightPart
from tidegate.state.snapshot import (
    EMPTY,
    IN_FLIGHT,
    SPLITS,
    WRITER,
    ListPart,
    OperatorSnapshot,
    Redistribution,
    in_use,
    redistribute,
)

Place = tuple[int, int]
"""Operator id, subtask."""

REPLACED_PATHS = 64
"""How many paths a task is sent. A worker that missed more reads its state from the local store again."""


class Accepted(NamedTuple):
    """``prepared``: what the round's sinks prepared, per sink in subtask order."""

    progress: Progress
    prepared: dict[int, list[Any]]


@dataclass(frozen=True)
class Progress:
    """State of a job between two rounds, all of it small: files are references, records never come here.

    It never changes. A round that is accepted gives a new one, and a round that is not leaves the old one as it was; so whoever
    stores a checkpoint may hold on to the one it was cut at while rounds continue.
    """

    graph: JobGraph
    snapshots: Mapping[Place, OperatorSnapshot] = field(default_factory=dict)
    committables: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)
    """Per sink, prepared and not confirmed, in the order of rounds."""
    wake_ups: Mapping[Place, int] = field(default_factory=dict)
    lately_replaced: Mapping[Place, tuple[str, ...]] = field(default_factory=dict)
    """Paths of state files that merges have taken out of a list, so that a worker knows that what it holds of them was accepted.
    A new attempt begins without."""

    @staticmethod
    def restored(graph: JobGraph, states: Mapping[str, OperatorState], *, root: str = "") -> Progress:
        """From a checkpoint, at this program's parallelism. ``states``: by uid hash. ``root``: where the files are, if not in the
        job's own directory."""
        snapshots: dict[Place, OperatorSnapshot] = {}
        committables: dict[int, tuple[Any, ...]] = {}
        for o in graph.operators:
            state = states.get(o.uid_hash)
            if state is not None:
                shared = redistribute(state.subtasks, o.parallelism, o.max_parallelism, root=root)
                snapshots.update({(o.id, subtask): snapshot for subtask, snapshot in enumerate(shared)})
                committables[o.id] = tuple(map(_unpack, state.committables))
        wake_ups = {place: 0 for place, snapshot in snapshots.items() if snapshot.files()}
        # which timers wait in the files the first round tells
        return Progress(graph, snapshots, committables, wake_ups)

    @cached_property
    def in_flight_records(self) -> int:
        """How many records subtasks have received but not processed: these records come first in the next round."""
        waiting = [snapshot.in_flight for snapshot in self.snapshots.values()]
        return sum(max(1, part.records) for part in waiting if part is not None)

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self, context: RoundContext, sources: Mapping[int, SourcePlan], merge: Merge = Merge.TIERS) -> RoundPlan:
        snapshots = self._with_moved_splits(sources)
        tasks = [
            [t for chain in level for t in self._tasks(chain, sources, snapshots, merge)] for level in self.graph.levels
        ]
        return RoundPlan(context, tasks)

    def statuses(self) -> dict[int, list[Status]]:
        """Per operator the status of each of its subtasks."""
        return {
            o.id: [self._status(o.id, subtask) for subtask in range(o.parallelism)]
            for o in self.graph.operators
            if (o.id, 0) in self.snapshots
        }

    def _status(self, operator_id: int, subtask: int) -> Status:
        snapshot = self.snapshots.get((operator_id, subtask), EMPTY)
        return Status(snapshot.watermark, snapshot.idle)

    def _with_moved_splits(self, sources: Mapping[int, SourcePlan]) -> Mapping[Place, OperatorSnapshot]:
        """After a rescale the enumerator gives splits to other subtasks: their watermark generators go with them, and what waits of
        them. While it gives none of a split, the generator goes to where something waits."""
        moved = dict(self.snapshots)
        for operator_id, plan in sources.items():
            places = [(operator_id, n) for n in range(self._parallelism[operator_id]) if (operator_id, n) in moved]
            held = {place: {item[0]: item for item in moved[place].values(SPLITS)} for place in places}
            logs = {place: _logs_by_split(moved[place]) for place in places}
            readers = {split: place for place in places for split in logs[place]}
            readers |= {interval.split: (operator_id, interval.subtask) for interval in plan.intervals}
            changed = set()
            for kept in (held, logs):  # type: dict[Place, dict[str, Any]]
                elsewhere = [
                    (split, owner) for owner in places for split in kept[owner] if readers.get(split, owner) != owner
                ]
                for split, owner in elsewhere:
                    place = readers[split]
                    kept.setdefault(place, {})[split] = kept[owner].pop(split)
                    changed |= {owner, place}
            for place in changed:
                part = ListPart.of(Redistribution.EVEN_SPLIT, held.get(place, {}).values())
                waiting = InFlightPart(tuple(logs.get(place, {}).values()))
                without = moved.get(place, EMPTY).with_part(SPLITS, part).without(IN_FLIGHT)
                moved[place] = without.with_part(IN_FLIGHT, waiting) if waiting.logs else without
        return moved

    @cached_property
    def _parallelism(self) -> dict[int, int]:
        return {operator.id: operator.parallelism for operator in self.graph.operators}

    def _tasks(
        self,
        chain: Chain,
        sources: Mapping[int, SourcePlan],
        snapshots: Mapping[Place, OperatorSnapshot],
        merge: Merge,
    ) -> Iterator[TaskPlan]:
        """Yield the plans of a chain's subtasks."""
        operators, plan = [o.id for o in chain.operators], sources.get(chain.head.operator.id)
        intervals: dict[int, list[SplitInterval]] = {}
        for interval in plan.intervals if plan is not None else ():
            intervals.setdefault(interval.subtask, []).append(interval)
        for n in range(chain.parallelism):
            own = {o: snapshots[o, n] for o in operators if (o, n) in snapshots}
            yield TaskPlan(
                snapshots=own,
                compact={o: run for o, s in own.items() if (run := _run_to_merge(s, merge)) is not None},
                whole=merge is Merge.WHOLE,
                replaced={o: self.lately_replaced[o, n] for o in own if (o, n) in self.lately_replaced},
                intervals=intervals.get(n, []),
                source_finished=plan.finished if plan else False,
                source_held=plan.held if plan else False,
                source_awaited=plan is not None and n in plan.awaited,
            )

    @property
    def next_wake_up_ms(self) -> int | None:
        """The earliest processing-time timer or idleness any subtask waits for."""
        return min(self.wake_ups.values(), default=None)

    # -- accepting ---------------------------------------------------------------------------------------------------

    def check(self, acks: list[Ack]) -> None:
        """Every subtask has acknowledged once, and all saw the same attempts of their senders. Else nothing may be accepted.

        A stage that Spark ran again after some of its receivers had read the first run shows here: the tokens differ. A receiver
        sends one digest for each edge, and the expected digest is computed once. So the check costs something for each subtask,
        and not for each pair of subtasks.
        """
        tokens = {(ack.chain, ack.subtask): ack.token for ack in acks}
        expected = {(chain.id, s) for chain in self.graph.chains for s in range(chain.parallelism)}
        if len(acks) != len(tokens) or set(tokens) != expected:
            raise RoundError(
                "Not every subtask has acknowledged the round exactly once",
                found=f"{len(acks)} acks of {len(tokens)} subtasks, expected {len(expected)}",
            )
        due = {
            chain.id: seen_tokens([tokens[chain.id, s] for s in range(chain.parallelism)])
            for chain in self.graph.chains
        }
        sender = {e.id: self.graph.chain_of[e.source] for chain in self.graph.chains for e in chain.inputs}
        for ack in acks:
            for edge, seen in ack.inputs.items():
                if seen != due[sender[edge]]:
                    raise RoundError(
                        "Subtasks of a round saw different attempts of the same task",
                        where=f"chain {ack.chain}, subtask {ack.subtask}, edge {edge} from chain {sender[edge]}",
                        found=f"attempts with digest {seen}, acknowledged were those with {due[sender[edge]]}",
                        cure="do nothing: the job restarts from the last checkpoint",
                    )

    def accept(self, acks: Iterable[Ack]) -> Accepted:
        """Accept a round: return the new progress, with the new states of its subtasks."""
        snapshots, wake_ups = dict(self.snapshots), dict(self.wake_ups)
        replaced = dict(self.lately_replaced)
        prepared: dict[int, list[Any]] = {}
        operators = [[o.id for o in chain.operators] for chain in self.graph.chains]
        for ack in sorted(acks, key=lambda a: (a.chain, a.subtask)):
            for operator_id in operators[ack.chain] if wake_ups else ():
                # what a restore knew of it; the ack tells the next one, if there is any
                wake_ups.pop((operator_id, ack.subtask), None)
            if ack.wake_up_ms is not None:
                wake_ups[operators[ack.chain][0], ack.subtask] = ack.wake_up_ms
            for operator_id, snapshot in ack.snapshots.items():
                place = (operator_id, ack.subtask)
                before = self.snapshots.get(place, EMPTY)
                if before.parts and before.parts != snapshot.parts:
                    now = {file.path for file in snapshot.files()}
                    gone = [file.path for file in before.files() if file.path not in now]
                    if gone:
                        replaced[place] = (*replaced.get(place, ()), *gone)[-REPLACED_PATHS:]
                snapshots[place] = snapshot
            for operator_id, items in ack.committables.items():
                prepared.setdefault(operator_id, []).extend(items)
        after = replace(self, snapshots=snapshots, wake_ups=wake_ups, lately_replaced=replaced)
        return Accepted(after, prepared)

    def with_pending(self, prepared: Mapping[int, Iterable[Any]]) -> Progress:
        """Return the progress with more output that waits for a checkpoint, after the output that already waits."""
        more = {sink: (*self.committables.get(sink, ()), *items) for sink, items in prepared.items()}
        return replace(self, committables={**self.committables, **more})

    def without_pending(self, confirmed: Mapping[int, Iterable[Any]]) -> Progress:
        """Return the progress without committed output, which is the oldest: output is committed in the order of rounds."""
        rest = {sink: self.committables.get(sink, ())[len(tuple(items)) :] for sink, items in confirmed.items()}
        return replace(self, committables={**self.committables, **rest})

    def paths(self) -> set[str]:
        """Return the files that the running job needs."""
        return in_use(self.snapshots)

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def operator_states(self, sources: Mapping[int, Any]) -> list[OperatorState]:
        """Return the content for step 7. ``sources``: enumerator snapshots."""
        return [self._operator_state(operator, sources) for operator in self.graph.operators]

    def _operator_state(self, o: Operator, sources: Mapping[int, Any]) -> OperatorState:
        return OperatorState(
            uid_hash=o.uid_hash,
            uid=o.uid,
            name=o.name,
            parallelism=o.parallelism,
            max_parallelism=o.max_parallelism,
            subtasks=[self.snapshots.get((o.id, subtask), EMPTY) for subtask in range(o.parallelism)],
            source=sources.get(o.id),
            committables=list(map(_pack, self.committables.get(o.id, ()))),
        )

    @property
    def keeps_writers(self) -> bool:
        """Whether a sink has something open that it carries from round to round."""
        return any(WRITER in snapshot.parts for snapshot in self.snapshots.values())

    def writer_states(self) -> dict[int, list[Any]]:
        """Per sink what its writers have handed over to those of the next round."""
        states: dict[int, list[Any]] = {}
        for (operator_id, _), snapshot in self.snapshots.items():
            states.setdefault(operator_id, []).extend(snapshot.values(WRITER))
        return {operator_id: rows for operator_id, rows in states.items() if rows}


def _logs_by_split(snapshot: OperatorSnapshot) -> dict[str, InFlightLog]:
    return {log.split or "": log for log in snapshot.in_flight.logs} if snapshot.in_flight is not None else {}


def rounds_behind(acks: Iterable[Ack]) -> float:
    """Return how many rounds like this one it would take to process the waiting records, for the slowest subtask."""
    return max((_left(ack) / max(1, ack.records_in) for ack in acks), default=0.0)


def _left(ack: Ack) -> int:
    return sum(part.records for snapshot in ack.snapshots.values() if (part := snapshot.in_flight) is not None)


def written_paths(acks: Iterable[Ack]) -> set[str]:
    """State files that the acks of a round name."""
    return {path for ack in acks for path in in_use(ack.snapshots)}


def _run_to_merge(snapshot: OperatorSnapshot, merge: Merge) -> tuple[int, int] | None:
    if snapshot.keyed is None or not snapshot.keyed.files:
        return None
    files = list(snapshot.keyed.files)
    if any(file.root for file in files):  # files of another job's directory may not get into a checkpoint of this one
        return 0, len(files)
    if merge is Merge.WHOLE or (merge is Merge.BASES and len(files) > 1):
        return 0, len(files)
    return materialize.plan(files)


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

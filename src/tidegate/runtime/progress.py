"""What the accepted rounds have come to: the only thing that counts, and what a checkpoint writes down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from tidegate.checkpoint.assign import assign_round_robin, assign_watermarks
from tidegate.checkpoint.metadata import OperatorState, SubtaskState
from tidegate.checkpoint.plain_data import find_other
from tidegate.common.errors import ArgumentTypeError, RoundError
from tidegate.graph.plan import Chain, JobGraph, Operator
from tidegate.operators.rows import Ack, Generator, RoundContext, Status, TaskPlan
from tidegate.operators.sink import Prepared
from tidegate.operators.source import SourcePlan
from tidegate.runtime.engine import RoundPlan
from tidegate.state import compaction
from tidegate.state.key_groups import range_for
from tidegate.state.refs import StateFile, StateSchema

Place = tuple[int, int]
"""Operator id, subtask."""

REPLACED_PATHS = 64
"""So many a task is told. A worker that is further behind reads its state from the local store again."""


@dataclass
class Progress:
    """State of a job between two rounds, all of it small: files are references, records never come here."""

    graph: JobGraph
    files: dict[Place, list[StateFile]] = field(default_factory=dict)
    schemas: dict[int, list[StateSchema]] = field(default_factory=dict)
    statuses: dict[int, list[Status]] = field(default_factory=dict)
    splits: dict[Place, dict[str, Generator]] = field(default_factory=dict)
    generators: dict[Place, Generator] = field(default_factory=dict)
    writers: dict[Place, list[Any]] = field(default_factory=dict)
    committables: dict[int, list[Any]] = field(default_factory=dict)
    """Per sink, prepared and not confirmed, in the order of rounds."""
    wake_ups: dict[Place, int] = field(default_factory=dict)
    replaced: set[str] = field(default_factory=set)
    """Paths of state files that a merge has replaced since they were last taken."""
    lately_replaced: dict[Place, tuple[str, ...]] = field(default_factory=dict)
    """Of each list, so that a worker knows that what it holds of them was accepted. A new attempt begins without."""

    # -- planning ----------------------------------------------------------------------------------------------------

    def plan(self, context: RoundContext, sources: Mapping[int, SourcePlan]) -> RoundPlan:
        self._follow_splits(sources)
        tasks = [
            [self._task(chain, subtask, sources) for chain in level for subtask in range(chain.parallelism)]
            for level in self.graph.levels
        ]
        return RoundPlan(context, tasks)

    def _follow_splits(self, sources: Mapping[int, SourcePlan]) -> None:
        """After a rescale the enumerator gives splits to other subtasks: their watermark generators go with them."""
        for operator_id, plan in sources.items():
            for interval in plan.intervals:
                split, place = interval.split, (operator_id, interval.subtask)
                if split not in self.splits.get(place, {}):
                    owners = [p for p, held in self.splits.items() if p[0] == operator_id and split in held]
                    for owner in owners:
                        held = dict(self.splits[owner])
                        self.splits[place] = {**self.splits.get(place, {}), split: held.pop(split)}
                        self.splits[owner] = held

    def _task(self, chain: Chain, subtask: int, sources: Mapping[int, SourcePlan]) -> TaskPlan:
        head = chain.head.operator
        files = self.files.get((head.id, subtask), [])
        plan = sources.get(head.id)
        places = [(operator.id, (operator.id, subtask)) for operator in chain.operators]
        return TaskPlan(
            files=files,
            replaced=self.lately_replaced.get((head.id, subtask), ()),
            schemas=self.schemas.get(head.id, []),
            compact=(0, len(files)) if any(f.root for f in files) else compaction.plan(files),
            intervals=[i for i in plan.intervals if i.subtask == subtask] if plan else [],
            source_finished=plan.finished if plan else False,
            splits=self.splits.get((head.id, subtask), {}),
            generators={o: self.generators[place] for o, place in places if place in self.generators},
            writers={o: self.writers[place] for o, place in places if self.writers.get(place)},
        )

    @property
    def next_wake_up_ms(self) -> int | None:
        """The earliest processing-time timer or idleness any subtask waits for."""
        return min(self.wake_ups.values(), default=None)

    # -- accepting ---------------------------------------------------------------------------------------------------

    def check(self, acks: list[Ack]) -> None:
        """Every subtask has acknowledged once, and all saw the same attempts of their senders. Else nothing may be accepted.

        A stage that Spark ran again after some of its receivers had read the first run shows here: the tokens differ.
        """
        tokens = {(ack.chain, ack.subtask): ack.token for ack in acks}
        expected = {(chain.id, s) for chain in self.graph.chains for s in range(chain.parallelism)}
        if len(acks) != len(tokens) or set(tokens) != expected:
            raise RoundError(
                "Every subtask acknowledges a round exactly once",
                found=f"{len(acks)} acks of {len(tokens)} subtasks, expected {len(expected)}",
            )
        sender = {e.id: self.graph.chain_of[e.source] for chain in self.graph.chains for e in chain.inputs}
        for ack in acks:
            for (edge, subtask), token in ack.inputs.items():
                if tokens[sender[edge], subtask] != token:
                    raise RoundError(
                        "Subtasks of a round saw different attempts of the same task",
                        where=f"chain {ack.chain}, subtask {ack.subtask}, edge {edge} from subtask {subtask}",
                        found=f"token {token}, acknowledged was {tokens[sender[edge], subtask]}",
                        cure="the round is run again from the last checkpoint",
                    )

    def check_prepared(self, acks: list[Ack]) -> None:
        """What sinks hand over goes into checkpoints: a sink that hands over something else is told so, in its own name."""
        for ack in acks:
            for operator_id, prepared in ack.prepared.items():
                problem = _not_plain(prepared)
                if problem is not None:
                    sink = next(o for o in self.graph.chains[ack.chain].operators if o.id == operator_id)
                    raise ArgumentTypeError(
                        "prepare_commit returns a Prepared with two lists of plain data "
                        "(None, bool, int of 64 bits, float, str, bytes, list, dict).",
                        where=f"sink '{sink.name}', subtask {ack.subtask}",
                        found=problem,
                        cure="turn what commit needs into plain data in prepare_commit, and back in the committer",
                    )

    def accept(self, acks: list[Ack], plan: RoundPlan) -> dict[int, list[Any]]:
        """The round has happened. Returns what its sinks prepared, per sink in subtask order."""
        prepared: dict[int, list[Any]] = {}
        for ack in sorted(acks, key=lambda a: (a.chain, a.subtask)):
            chain = self.graph.chains[ack.chain]
            self._accept_state(ack, chain, plan.tasks[chain.level][chain.offset + ack.subtask])
            place = (chain.head.operator.id, ack.subtask)
            self.splits[place] = ack.splits
            if ack.wake_up_ms is None:
                self.wake_ups.pop(place, None)
            else:
                self.wake_ups[place] = ack.wake_up_ms
            for operator_id, generator in ack.generators.items():
                self.generators[operator_id, ack.subtask] = generator
            for operator_id, status in ack.statuses.items():
                row = self.statuses.setdefault(operator_id, [Status()] * chain.parallelism)
                row[ack.subtask] = status
            for operator_id, result in ack.prepared.items():
                self.writers[operator_id, ack.subtask] = result.state
                prepared.setdefault(operator_id, []).extend(result.committables)
        return prepared

    def _accept_state(self, ack: Ack, chain: Chain, task: TaskPlan) -> None:
        place = (chain.head.operator.id, ack.subtask)
        files = list(task.files)
        if ack.compacted is not None and task.compact is not None:
            first, end = task.compact
            self.replaced.update(f.path for f in files[first:end] if not f.root)
            paths = [*task.replaced, *(f.path for f in files[first:end])]
            self.lately_replaced[place] = tuple(paths[-REPLACED_PATHS:])
            files[first:end] = [ack.compacted]
        if ack.segment is not None:
            files.append(ack.segment)
        self.files[place] = files
        if ack.schemas:
            known = {schema.name: schema for schema in self.schemas.get(place[0], [])}
            known.update({schema.name: schema for schema in ack.schemas})
            self.schemas[place[0]] = list(known.values())

    def take_replaced(self) -> set[str]:
        replaced, self.replaced = self.replaced - self.paths(), set()
        return replaced

    def paths(self) -> set[str]:
        """Files the running job needs."""
        return {f.path for files in self.files.values() for f in files if not f.root}

    # -- checkpoints -------------------------------------------------------------------------------------------------

    def operator_states(self, sources: Mapping[int, Any]) -> list[OperatorState]:
        """Step 7's content. ``sources``: enumerator snapshots."""
        return [self._operator_state(operator, sources) for operator in self.graph.operators]

    def _operator_state(self, o: Operator, sources: Mapping[int, Any]) -> OperatorState:
        subtasks = range(o.parallelism)
        keyed = [
            SubtaskState(range_for(s, o.parallelism, o.max_parallelism), self.files[o.id, s])
            for s in subtasks
            if self.files.get((o.id, s))
        ]
        splits = {
            split: [generator.greatest, generator.active_ms, s]
            for s in subtasks
            for split, generator in self.splits.get((o.id, s), {}).items()
        }
        generators = [self.generators[o.id, s] for s in subtasks if (o.id, s) in self.generators]
        return OperatorState(
            uid_hash=o.uid_hash,
            uid=o.uid,
            name=o.name,
            parallelism=o.parallelism,
            max_parallelism=o.max_parallelism,
            keyed=keyed,
            schemas=self.schemas.get(o.id, []),
            source=sources.get(o.id),
            splits=splits,
            generators=[list(generator) for generator in generators],
            watermarks=[status.watermark for status in self.statuses.get(o.id, [])],
            writer_states=[_pack(state) for s in subtasks for state in self.writers.get((o.id, s), [])],
            committables=[_pack(item) for item in self.committables.get(o.id, [])],
        )

    def restore(self, operator: Operator, state: OperatorState, keyed: list[SubtaskState]) -> None:
        """Take over one operator's state at this program's parallelism; ``keyed``: per new subtask, clipped to its range."""
        n = operator.parallelism
        for subtask, part in enumerate(keyed):
            if part.files:
                self.files[operator.id, subtask] = part.files
                self.wake_ups[operator.id, subtask] = 0  # which timers wait in the files the first round tells
        self.schemas[operator.id] = list(state.schemas)
        if state.watermarks:
            self.statuses[operator.id] = [Status(w) for w in assign_watermarks(state.watermarks, n)]
        if operator.spec.is_source:
            for split, (greatest, active, subtask) in state.splits.items():
                self.splits.setdefault((operator.id, subtask % n), {})[split] = Generator(greatest, active)
        if len(state.generators) == n:
            for subtask, (greatest, active) in enumerate(state.generators):
                self.generators[operator.id, subtask] = Generator(greatest, active)
        for subtask, row in enumerate(assign_round_robin(state.writer_states, n)):
            self.writers[operator.id, subtask] = [_unpack(packed) for packed in row]
        self.committables[operator.id] = [_unpack(item) for item in state.committables]

    def writer_states(self) -> dict[int, list[Any]]:
        states: dict[int, list[Any]] = {}
        for (operator_id, _), row in self.writers.items():
            states.setdefault(operator_id, []).extend(row)
        return states


def _not_plain(prepared: Any) -> str | None:
    if not isinstance(prepared, Prepared):
        return f"{prepared!r:.200} instead of a Prepared"
    for name, items in (("committables", prepared.committables), ("state", prepared.state)):
        if type(items) is not list:
            return f"{name} is of type {type(items).__name__}"
        other = find_other(items, allow_bytes=True)
        if other is not None:
            return f"{other!r:.200} of type {type(other).__name__} in its {name}"
    return None


_pack = msgspec.msgpack.Encoder().encode
_unpack = msgspec.msgpack.Decoder().decode

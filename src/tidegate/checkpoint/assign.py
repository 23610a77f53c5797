"""From a checkpoint to the subtasks of a program: matching operators, splitting and merging by key group."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState, SubtaskState
from tidegate.common.errors import RestoreError
from tidegate.state.key_groups import range_for
from tidegate.state.refs import KeyGroupRange, StateFile, StateSchema, schema_mismatch

logger = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(frozen=True)
class ProgramOperator:
    """What the restoring program has to say about one of its operators."""

    uid_hash: str
    name: str
    parallelism: int
    max_parallelism: int
    uid: str | None = None
    schemas: tuple[StateSchema, ...] = ()
    """States known before the functions run; others are checked when they are registered, by ``schema_mismatch``."""
    is_source: bool = False
    is_sink: bool = False


def match_operators(
    metadata: CheckpointMetadata,
    operators: Sequence[ProgramOperator],
    *,
    where: str,
    allow_non_restored_state: bool = False,
) -> dict[str, OperatorState]:
    """The stored state of each operator of the program that has some, by uid hash. Operators without start empty.

    Raises one ``RestoreError`` with all mismatches: call it before anything is touched.
    """
    stored = {state.uid_hash: state for state in metadata.operators}
    matched = {operator.uid_hash: stored[operator.uid_hash] for operator in operators if operator.uid_hash in stored}
    problems = [problem for operator in operators for problem in _mismatches(matched.get(operator.uid_hash), operator)]
    for state in metadata.operators:
        if state.uid_hash not in matched and state.has_state:
            if allow_non_restored_state:
                logger.warning("%s: dropped, as allowed: %s", where, _describe(state))
            else:
                problems.append(f"{_describe(state)} is not in the program")
    if problems:
        raise RestoreError(
            "The program must fit the state it restores.",
            where=where,
            found="".join(f"\n    - {problem}" for problem in problems),
            cure="give operators the uid they had, undo the changes, or allow dropping state of removed operators "
            "(execution.state-recovery.ignore-unclaimed-state: true)",
        )
    return matched


def assign_keyed(state: OperatorState, parallelism: int, *, root: str = "") -> list[SubtaskState]:
    """Keyed state for each of the new subtasks: the files of the old ones, clipped to the new ranges.

    The order of files of one old subtask is kept, since later ones win; files of different old subtasks have no key
    group in common, so their order among each other is free. ``root``: where the files are, if not in the job's own
    directory.
    """
    assigned = []
    for subtask in range(parallelism):
        groups = range_for(subtask, parallelism, state.max_parallelism)
        files = [file for old in state.keyed for file in _clipped(old, groups, root)]
        assigned.append(SubtaskState(groups, files))
    return assigned


def assign_round_robin(items: Sequence[T], parallelism: int) -> list[list[T]]:
    """Writer states for each of the new subtasks."""
    return [list(items[subtask::parallelism]) for subtask in range(parallelism)]


def assign_watermarks(watermarks: Sequence[int], parallelism: int) -> list[int]:
    """The output watermark each new subtask starts with; after a rescale the lowest: any key may come from any one."""
    if len(watermarks) == parallelism or not watermarks:
        return list(watermarks)
    return [min(watermarks)] * parallelism


def _clipped(old: SubtaskState, groups: KeyGroupRange, root: str) -> list[StateFile]:
    common = old.groups.intersect(groups)
    if common is None:
        return []
    clips = ((file, file.groups.intersect(common)) for file in old.files)
    return [msgspec.structs.replace(file, groups=clip, root=root) for file, clip in clips if clip is not None]


def _mismatches(state: OperatorState | None, operator: ProgramOperator) -> list[str]:
    if state is None:
        return []
    name = f"operator {operator.name!r} (uid {operator.uid or operator.uid_hash})"
    problems = []
    if any(subtask.files for subtask in state.keyed) and state.max_parallelism != operator.max_parallelism:
        found = f"is stored with maximum parallelism {state.max_parallelism} and now has {operator.max_parallelism}"
        problems.append(f"{name} {found}")
    if state.source is not None and not operator.is_source:
        problems.append(f"{name} is stored as a source and is none now")
    if state.committables and not operator.is_sink:
        problems.append(f"{name} is stored as a sink with output to commit and is none now")
    mismatches = (schema_mismatch(state.schemas, declared) for declared in operator.schemas)
    return problems + [f"{name}: {mismatch}" for mismatch in mismatches if mismatch]


def _describe(state: OperatorState) -> str:
    parts = []
    if any(subtask.files for subtask in state.keyed):
        names = ", ".join(schema.name for schema in state.schemas) or "keyed state"
        parts.append(f"states: {names}")
    if state.source is not None:
        parts.append("source positions")
    if state.writer_states:
        parts.append(f"{len(state.writer_states)} writer states")
    if state.committables:
        parts.append(f"{len(state.committables)} outputs not yet committed")
    return f"operator {state.name!r} (uid {state.uid or state.uid_hash}; {'; '.join(parts)})"

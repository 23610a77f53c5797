"""From a checkpoint to the operators of a program: what belongs to whom, and every mismatch at once."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass

from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.common.errors import RestoreError
from tidegate.state.refs import StateSchema, schema_mismatch
from tidegate.state.snapshot import WRITER

logger = logging.getLogger(__name__)


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
    key_type: str = ""
    """The declared type of the key, as text."""
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


def _mismatches(state: OperatorState | None, operator: ProgramOperator) -> list[str]:
    if state is None:
        return []
    name = f"operator {operator.name!r} (uid {operator.uid or operator.uid_hash})"
    problems = []
    by_key = state.keyed_files() or any(part.has_keys for part in state.in_flight())
    if by_key and state.max_parallelism != operator.max_parallelism:
        found = f"is stored with maximum parallelism {state.max_parallelism} and now has {operator.max_parallelism}"
        problems.append(f"{name} {found}")
    if state.keyed_files() and state.key_type != operator.key_type:
        old, new = state.key_type or "no keyed state", operator.key_type or "no keyed state"
        problems.append(f"{name} is stored with keys of type {old} and now has {new}")
    if state.source is not None and not operator.is_source:
        problems.append(f"{name} is stored as a source and is none now")
    if not operator.is_sink and (state.committables or state.values(WRITER)):  # open files of a writer are output too
        problems.append(f"{name} is stored as a sink with output to commit and is none now")
    mismatches = (schema_mismatch(state.schemas, declared) for declared in operator.schemas)
    return problems + [f"{name}: {mismatch}" for mismatch in mismatches if mismatch]


def _describe(state: OperatorState) -> str:
    parts = []
    names = [schema.name for schema in state.schemas] or ["keyed state"] if state.keyed_files() else []
    names += sorted({part.schema.name for snapshot in state.subtasks for part in snapshot.stored().values()})
    if names:
        parts.append(f"states: {', '.join(names)}")
    if state.source is not None:
        parts.append("source positions")
    waiting = sum(part.records for part in state.in_flight())
    if waiting:
        parts.append(f"{waiting:,} records in flight")
    writers = state.values(WRITER)
    if writers:
        parts.append(f"{len(writers)} writer states")
    if state.committables:
        parts.append(f"{len(state.committables)} outputs not yet committed")
    return f"operator {state.name!r} (uid {state.uid or state.uid_hash}; {'; '.join(parts)})"

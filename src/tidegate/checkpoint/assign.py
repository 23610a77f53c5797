"""Match the state in a checkpoint with the operators of a program, and report all misfits in one error."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from tidegate.base.errors import RestoreError
from tidegate.base.plain_text import count
from tidegate.checkpoint.metadata import CheckpointMetadata, OperatorState
from tidegate.state.refs import CURE_OF_MISFITS
from tidegate.state.snapshot import WRITER

CURE_OF_STATES = f"a state: {CURE_OF_MISFITS}, which then starts empty"
CURE_OF_KEYS = "keys: declare the previous key type; or give the operator another uid, and it starts empty"
CURE_OF_MAXIMUM = "a maximum parallelism: set the previous value, because it fixes how keys are spread over the state"
CURE_OF_KINDS = "a source or sink: give the operator in its place another uid"
CURE_OF_REMOVED = (
    "an operator that is not in the program: add the operator again; or give its uid to the operator that replaces it; or drop "
    "its state (run -n, execution.state-recovery.ignore-unclaimed-state: true)"
)


@dataclass(frozen=True)
class Misfit:
    """``uid_hash``: of the operator. ``found`` names the operator, the state, its stored form and its present form."""

    uid_hash: str
    found: str
    cure: str


def named(name: str, uid: str | None, uid_hash: str) -> str:
    """Return the name of an operator in reports."""
    return f"operator {name!r} (uid {uid or uid_hash})"


def refusal(where: str | None, misfits: Iterable[Misfit], order: Sequence[str] = ()) -> RestoreError:
    """Make one error of all misfits. ``order``: uid hashes of the program's operators; other operators come last."""
    place = {uid_hash: n for n, uid_hash in enumerate(order)}
    told = sorted(misfits, key=lambda misfit: place.get(misfit.uid_hash, len(place)))
    cures = list(dict.fromkeys(misfit.cure for misfit in told))
    return RestoreError(
        "The program does not fit the state that it restores.",
        where=where,
        found=_listed(misfit.found for misfit in told),
        cure=cures[0] if len(cures) == 1 else _listed(cures),
    )


def _listed(lines: Iterable[str]) -> str:
    return "".join(f"\n    - {line}" for line in lines)


logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ProgramOperator:
    """One operator of the restoring program. The operator declares its states later (``runtime/life_cycle.py``)."""

    uid_hash: str
    name: str
    parallelism: int
    max_parallelism: int
    uid: str | None = None
    key_type: str = ""
    """The declared type of the key, as text."""
    is_source: bool = False
    is_sink: bool = False


@dataclass(frozen=True)
class Matched:
    """``states``: the stored state by uid hash, for each operator of the program that has state; other operators start empty.
    ``misfits``: nothing may be restored while there is a misfit."""

    states: dict[str, OperatorState]
    misfits: tuple[Misfit, ...] = ()


def match_operators(
    metadata: CheckpointMetadata,
    operators: Sequence[ProgramOperator],
    *,
    where: str,
    allow_non_restored_state: bool = False,
) -> Matched:
    """Match stored states with the program's operators. Reads only."""
    stored = {state.uid_hash: state for state in metadata.operators}
    matched = {operator.uid_hash: stored[operator.uid_hash] for operator in operators if operator.uid_hash in stored}
    misfits = [misfit for o in operators if o.uid_hash in matched for misfit in _misfits(matched[o.uid_hash], o)]
    for state in metadata.operators:
        if state.uid_hash not in matched and state.has_state:
            if allow_non_restored_state:
                logger.warning("%s: state discarded, as configured: %s", where, _describe(state))
            else:
                misfits.append(Misfit(state.uid_hash, f"{_describe(state)} is not in the program", CURE_OF_REMOVED))
    return Matched(matched, tuple(misfits))


def _misfits(state: OperatorState, operator: ProgramOperator) -> Iterator[Misfit]:
    def misfit(found: str, cure: str) -> Misfit:
        return Misfit(operator.uid_hash, f"{named(operator.name, operator.uid, operator.uid_hash)} {found}", cure)

    by_key = state.keyed_files() or any(part.has_keys for part in state.in_flight())
    if by_key and state.max_parallelism != operator.max_parallelism:
        old, new = state.max_parallelism, operator.max_parallelism
        yield misfit(f"is stored with maximum parallelism {old} and now has {new}", CURE_OF_MAXIMUM)
    if state.keyed_files() and state.key_type != operator.key_type:
        was, now = state.key_type or "no keyed state", operator.key_type or "no keyed state"
        yield misfit(f"is stored with keys of type {was} and now has {now}", CURE_OF_KEYS)
    if state.source is not None and not operator.is_source:
        yield misfit("is stored as a source and is no source now", CURE_OF_KINDS)
    if not operator.is_sink and (state.committables or state.values(WRITER)):  # open files of a writer are output too
        yield misfit("is stored as a sink with output to commit and is no sink now", CURE_OF_KINDS)


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
        parts.append(f"{count(waiting, 'record')} in flight")
    writers = state.values(WRITER)
    if writers:
        parts.append(f"{count(len(writers), 'writer state')}")
    if state.committables:
        parts.append(f"{count(len(state.committables), 'output')} not yet committed")
    return f"operator {state.name!r} (uid {state.uid or state.uid_hash}; {'; '.join(parts)})"

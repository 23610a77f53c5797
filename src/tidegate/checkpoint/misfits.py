"""Report what does not fit between a program and the state that it restores: one report for all misfits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tidegate.base.errors import RestoreError
from tidegate.state.refs import CURE_OF_MISFITS

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

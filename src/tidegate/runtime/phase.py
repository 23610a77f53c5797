"""The phases of an attempt as types: the next action of the attempt, and the savepoint with which the job ends.

A job whose sources end passes ``Running`` -> ``Notifying`` -> ``Over``. A job that is asked to end with a savepoint passes
``Running`` -> ``Stopping`` -> ``LastCut`` -> ``Notifying`` -> ``Over``. It returns to ``Running`` if the savepoint cannot be taken.
``Resting`` is a pause of ``Running`` or ``Stopping``. ``WindingUp`` is the end of an attempt that has failed or has to stop. It may
follow every phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.checkpoint.checkpoint import Checkpoint, Target


@dataclass(frozen=True)
class Running:
    """Rounds follow each other until all sources have ended and all output is committed.

    Waiting for the last commits is part of this phase. A checkpoint that could not be stored, or a request for a savepoint, still
    causes one more round."""


@dataclass(frozen=True)
class Stopping:
    """The job ends with a savepoint: nothing more is read, and the next round carries the savepoint."""

    target: Target


@dataclass(frozen=True)
class Resting:
    """No round begins before the timer wakes the attempt. The output of a declined round is being aborted, or storage has given no
    id for the last checkpoint."""

    then: Running | Stopping


@dataclass(frozen=True)
class LastCut:
    """The last round is accepted, and no other round begins. The lane stores and commits the savepoint with which the job ends."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Notifying:
    """All output is committed. A round runs only to notify functions of the last checkpoints; its results are ignored."""

    last: Checkpoint | None


@dataclass(frozen=True)
class Over:
    """Nothing is left to do."""

    last: Checkpoint | None


@dataclass(frozen=True)
class WindingUp:
    """The attempt ends with an error: the running round does not count, and the lanes finish. Their last reports change the phase
    ``before``."""

    error: Exception | SystemExit
    before: Phase


Phase = Running | Stopping | Resting | LastCut | Notifying | Over | WindingUp


def moved(phase: Phase, to: Phase) -> Phase:
    """Return the phase after ``phase``. An attempt that winds up stays in ``WindingUp``; only its phase ``before`` changes."""
    return replace(phase, before=to) if isinstance(phase, WindingUp) else to


def at_heart(phase: Phase) -> Running | Stopping | LastCut | Notifying | Over:
    """Return the phase without a pause, and without the failure that ends the attempt."""
    while isinstance(phase, Resting | WindingUp):
        phase = phase.then if isinstance(phase, Resting) else phase.before
    return phase


def last_of(phase: Phase) -> Target | Checkpoint | None:
    """Return the savepoint with which the job ends: its target after the request, its checkpoint after the cut."""
    match at_heart(phase):
        case Stopping(target=target):
            return target
        case LastCut(checkpoint=last) | Notifying(last=last) | Over(last=last):
            return last
    return None

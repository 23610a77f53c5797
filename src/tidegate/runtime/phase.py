"""The phases of an attempt, as types: what it is about to do, and which savepoint it ends with.

``Running`` -> ``Telling`` -> ``Over`` is the way of a job whose sources end. A job that is asked to end with a savepoint takes the
way ``Running`` -> ``Stopping`` -> ``LastCut`` -> ``Telling`` -> ``Over``, and returns to ``Running`` if that savepoint
cannot be taken.
``Resting`` is a pause of the first two. ``WindingUp`` is the end of an attempt that has failed or is to stop, from every phase.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidegate.checkpoint.checkpoint import Checkpoint, Target


@dataclass(frozen=True)
class Running:
    """Rounds follow each other until all sources have ended and all output is committed. Not a phase of its own: waiting for the
    last commits. A checkpoint that could not be stored, or a savepoint that somebody asks for, still makes one more round."""


@dataclass(frozen=True)
class Stopping:
    """The job ends with a savepoint: nothing more is read, and the next round carries it."""

    target: Target


@dataclass(frozen=True)
class Resting:
    """No round begins before the timer wakes the attempt: what a declined round has left is aborted, or storage has given no id
    for the last checkpoint."""

    then: Running | Stopping


@dataclass(frozen=True)
class LastCut:
    """The last round is accepted, and no other begins: the lane stores and commits the savepoint the job ends with."""

    checkpoint: Checkpoint


@dataclass(frozen=True)
class Telling:
    """All output is committed. A round runs only to notify functions of the last checkpoints; its results are ignored."""

    last: Checkpoint | None


@dataclass(frozen=True)
class Over:
    """Nothing is left to do."""

    last: Checkpoint | None


@dataclass(frozen=True)
class WindingUp:
    """The attempt ends with an error: the running round does not count, and the lanes come to rest. Their last reports change the
    phase ``before``."""

    error: Exception | SystemExit
    before: Phase


Phase = Running | Stopping | Resting | LastCut | Telling | Over | WindingUp


def moved(phase: Phase, to: Phase) -> Phase:
    """The phase after ``phase``. An attempt that winds up does nothing else any more."""
    return replace(phase, before=to) if isinstance(phase, WindingUp) else to


def at_heart(phase: Phase) -> Running | Stopping | LastCut | Telling | Over:
    """The phase without a pause, and without the failure that ends it."""
    while isinstance(phase, Resting | WindingUp):
        phase = phase.then if isinstance(phase, Resting) else phase.before
    return phase


def last_of(phase: Phase) -> Target | Checkpoint | None:
    """The savepoint the job ends with: asked for, or cut."""
    match at_heart(phase):
        case Stopping(target=target):
            return target
        case LastCut(checkpoint=last) | Telling(last=last) | Over(last=last):
            return last
    return None

"""A rehearsal: the functions of a job open where they will run, before anything is touched, to see whether their states fit.

Most states are declared in ``open``, so nobody knows them before user code runs. It runs in the tasks, where it would run a moment
later anyway and where its databases can be reached, not in the driver; functions that have opened stay open for the first
round. Nothing is read, written or recorded: a program that does not fit leaves the job, its directory and the snapshot as they
were. Once for a run of the driver: a restart has the same program, and the state it has written itself.

A rehearsal does not find a state that a function declares only when it processes a record: such a misfit fails its round.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tidegate.base.clock import Clock
from tidegate.base.errors import RoundError
from tidegate.checkpoint.misfits import CURE_OF_STATES, Misfit, named
from tidegate.graph.plan import JobGraph
from tidegate.operators.flow.rows import Ack, RoundContext
from tidegate.runtime.engine import Engine, RoundPlan
from tidegate.runtime.life_cycle import Checked
from tidegate.runtime.progress import Progress
from tidegate.runtime.watchdog import Watchdog


def is_due(progress: Progress) -> bool:
    """Whether there is a state that could be declared otherwise than it is stored."""
    return any(snapshot.declares_states for snapshot in progress.snapshots.values())


class Rehearsal:
    """``patience_ms``: for user code that hangs; None: nothing bounds it."""

    def __init__(
        self, engine: Engine, clock: Clock, aside: Callable[[Callable[[], None]], None], patience_ms: float | None
    ) -> None:
        self._engine, self._clock, self._patience_ms = engine, clock, patience_ms
        self._watchdog = Watchdog(engine, clock, aside)

    def run(self, checked: Checked, token: str) -> None:
        """Raises one ``RestoreError`` with all misfits of all operators, also those that were found by reading; else what user code
        raised, as a round would."""
        context = RoundContext(checked.round, f"{token}-rehearsal", None, self._clock.now_ms(), rehearsal=True)
        acks = self._acks(checked.progress.plan(context, {}))
        checked.refuse_misfits(_misfits(checked.graph, acks))
        for ack in acks:
            if ack.error is not None:
                raise ack.error

    def _acks(self, plan: RoundPlan) -> list[Ack]:
        if self._patience_ms is not None:
            self._watchdog.watch(self._patience_ms / 1000)
        try:
            return self._engine.run(plan)
        except RoundError as error:
            if self._watchdog.end():
                raise RoundError(
                    "The functions of the job take too long to open.",
                    found=f"they had not all opened after {self._patience_ms:.0f} ms",
                    cure="find out what open() waits for, or raise execution.checkpointing.timeout",
                ) from error
            raise
        finally:
            self._watchdog.end()


def _misfits(graph: JobGraph, acks: Iterable[Ack]) -> list[Misfit]:
    """Each once: all subtasks of an operator say the same."""
    said = {(operator_id, text) for ack in acks for operator_id, found in ack.misfits.items() for text in found}
    operators = {o.id: o for o in graph.operators}
    return [
        Misfit(o.uid_hash, f"{named(o.name, o.uid, o.uid_hash)}: {text}", CURE_OF_STATES)
        for operator_id, text in sorted(said)
        for o in (operators[operator_id],)
    ]

"""Step 8: committers of all sinks, called in order, retried with backoff, fenced by the lease."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tidegate.common import faults
from tidegate.common.clock import Clock
from tidegate.common.errors import CommitError, RetryableCommitError
from tidegate.graph.plan import Operator
from tidegate.operators.sink import Committer, CommitterContext, Publication, Sink

log = logging.getLogger(__name__)

_NEVER = threading.Event()


class SinkCommitters:
    """The committers of a job. ``check_lease`` is called before every commit: an attempt that lost it must not commit."""

    def __init__(
        self,
        sinks: list[Operator],
        job_id: str,
        root: str,
        *,
        check_lease: Callable[[], None],
        clock: Clock,
        attempts: int = 10,
        backoff_ms: int = 200,
    ) -> None:
        self._names = {operator.id: operator.name for operator in sinks}
        self._sinks: dict[int, Sink] = {o.id: o.spec.sink for o in sinks}
        self._committers: dict[int, Committer] = {}
        for operator in sinks:
            staging = f"{root}/taskowned/{operator.uid_hash}"
            context = CommitterContext(job_id, operator.uid_hash, staging, check_lease)
            committer = self._sinks[operator.id].create_committer(context)
            if committer is not None:
                self._committers[operator.id] = committer
        self._check_lease, self._clock = check_lease, clock
        self._attempts, self._backoff_ms = attempts, backoff_ms
        self.owes = False
        """A commit was begun and has not come to its end."""

    def waits_for_checkpoint(self, operator_id: int, checkpointing: bool) -> bool:
        """Whether committables of this sink are kept until a checkpoint is complete (or, without checkpoints, the job's end)."""
        publication = self._sinks[operator_id].publication
        return publication is Publication.CHECKPOINT or (
            publication is Publication.CHECKPOINT_OR_ROUND and checkpointing
        )

    def commit(self, committables: Mapping[int, Sequence[Any]], *, recovering: bool = False) -> None:
        """Commit per sink, in the order of rounds. Returns when every one is confirmed; raises CommitError otherwise."""
        self.owes = True
        for done, (operator_id, items) in enumerate(committables.items()):
            committer = self._committers.get(operator_id)
            if committer is not None and items:
                self._check_lease()
                faults.point("C6.before-commit", sink=self._names[operator_id], done=done)
                self._retry(operator_id, committer.recover if recovering else committer.commit, list(items))
                faults.point("C6.sink-committed", sink=self._names[operator_id], done=done)
        self.owes = False

    def _retry(self, operator_id: int, commit: Callable[[list[Any]], None], items: list[Any]) -> None:
        delay = self._backoff_ms
        for attempt in range(1, self._attempts + 1):
            try:
                return commit(items)
            except RetryableCommitError as error:
                log.warning("step 8: sink '%s', attempt %d: %s", self._names[operator_id], attempt, error)
                last = error
            if attempt < self._attempts:
                self._clock.wait(_NEVER, delay / 1000)  # a cancellation waits: step 7 has promised this output
                delay = min(delay * 2, 30_000)
        raise CommitError(
            "A sink did not take a commit that a completed checkpoint holds",
            where=f"sink '{self._names[operator_id]}'",
            found=f"{self._attempts} attempts, the last: {last}",
            cure="bring the outside system back; the restarted job commits it again",
        )

    def abort_lingering(self, committables: Mapping[int, Sequence[Any]], states: Mapping[int, list[Any]]) -> None:
        """Whatever was prepared and is in neither: after a restore, after a declined round, at the end of the job.

        Attempts of a task that Spark tried again may have prepared too. That is invisible, and waits for one of the three:
        to look for it behind every checkpoint would cost a listing of the sink each time, and only a failed task leaves any.
        """
        for operator_id, committer in self._committers.items():
            self._check_lease()
            committer.abort_lingering(list(committables.get(operator_id, ())), states.get(operator_id, []))

    def close(self) -> None:
        for committer in self._committers.values():
            committer.close()

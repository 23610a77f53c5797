"""Two-phase commit for users: a function with begin, invoke, pre-commit, commit, abort, and the sink that drives it."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import cloudpickle

from tidegate.base import faults
from tidegate.base.arguments import expect_int, wrong
from tidegate.base.errors import CommitError, ProgramError, RetryableCommitError, TidegateError
from tidegate.base.pickling import load_stored
from tidegate.connectors.functions.function_sink import SinkContext
from tidegate.connectors.functions.intents import Intents
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)

log = logging.getLogger(__name__)


class TwoPhaseCommitSinkFunction(ABC):
    """One transaction for each round and subtask that has records; an attempt that is repeated has a transaction
    of its own.

    A transaction handle pickles and is all another process needs to commit or abort. ``begin_transaction``,
    ``invoke`` and ``pre_commit`` run in tasks; the others run on the driver, maybe in a process that knows nothing
    of the transaction but its handle (``abort`` also runs in the task when the attempt fails). After a restart,
    transactions of completed checkpoints get ``recover_and_commit`` (in at-least-once mode also those whose commit had begun),
    all others of this job and sink ``recover_and_abort``. A crash between ``begin_transaction`` and its return leaves no
    trace: what must not stay behind should be made in ``invoke`` or carry a time-out.
    """

    @abstractmethod
    def begin_transaction(self) -> Any:
        """Open a transaction no other attempt uses, invisible to readers; return its handle."""

    @abstractmethod
    def invoke(self, transaction: Any, value: Any, context: SinkContext) -> None:
        """Write one record into the transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Any) -> None:
        """Step 5: flush. Afterwards a commit must be able to succeed, whatever crashes."""

    @abstractmethod
    def commit(self, transaction: Any) -> None:
        """Step 8. Called again after a crash or an error, also if it had succeeded: must then do nothing. Raise
        ``CommitError`` if no retry can help (the transaction is gone): the job fails and names it. Any other error
        is retried.
        """

    @abstractmethod
    def abort(self, transaction: Any) -> None:
        """Give the transaction up. May be called more than once."""

    def recover_and_commit(self, transaction: Any) -> None:
        """Commit after a restart: the transaction may have been committed already."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: Any) -> None:
        """Abort after a restart."""
        self.abort(transaction)

    # -- time-outs of the outside system ---------------------------------------------------------------------------------

    transaction_timeout_ms: int | None = None
    timeout_warning_ratio: float | None = None
    ignores_failures_after_timeout = False

    def set_transaction_timeout(self, transaction_timeout: int) -> TwoPhaseCommitSinkFunction:
        """After so many milliseconds the outside system drops a transaction. The two below use it."""
        self.transaction_timeout_ms = expect_int("set_transaction_timeout", transaction_timeout, "900_000")
        return self

    def enable_transaction_timeout_warnings(self, warning_ratio: float) -> TwoPhaseCommitSinkFunction:
        """Warn about a commit that comes when this part of the time-out, from 0 to 1, has passed."""
        if isinstance(warning_ratio, bool) or not isinstance(warning_ratio, float | int) or not 0 <= warning_ratio <= 1:
            raise wrong("enable_transaction_timeout_warnings", "a number from 0 to 1", warning_ratio, "0.8")
        self.timeout_warning_ratio = float(warning_ratio)
        return self

    def ignore_failures_after_transaction_timeout(self) -> TwoPhaseCommitSinkFunction:
        """After a restart: a transaction older than its time-out that cannot be committed is given up, with an error in the
        log. **Its records are lost**; without this the job fails, and would fail again with every start."""
        self.ignores_failures_after_timeout = True
        return self


class TwoPhaseCommitSink(Sink):
    """Runs a ``TwoPhaseCommitSinkFunction``."""

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT

    def __init__(self, function: TwoPhaseCommitSinkFunction) -> None:
        self.function = function

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _TransactionWriter(self.function, context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _TransactionCommitter(self.function, context)


class _TransactionWriter(SinkWriter):
    """The transaction is begun with the first record: subtasks without input cost nothing outside."""

    def __init__(self, function: TwoPhaseCommitSinkFunction, context: WriterContext) -> None:
        self._function, self._context = function, context
        self._sink_context = SinkContext(context.now_ms)
        self._begun = False
        self._transaction: Any = None
        self._intent: str | None = None

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        if not values:
            return
        if not self._begun:
            self._begin()
        invoke, transaction, context = self._function.invoke, self._transaction, self._sink_context
        for index, value in enumerate(values):
            invoke(transaction, value, context.at(timestamps[index] if timestamps else None))

    def _begin(self) -> None:
        self._transaction = self._function.begin_transaction()
        self._begun = True
        faults.point("K1.two-phase.begun", attempt=self._context.attempt)
        self._intent = Intents(self._context.staging).note(self._context, _pickled(self._transaction))

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if not self._begun:
            return Prepared()
        faults.point("K1.two-phase.pre-commit", attempt=self._context.attempt)
        self._function.pre_commit(self._transaction)
        # Pickled again: pre-commit may have added to the handle what the commit needs.
        made = {"intent": self._intent, "transaction": _pickled(self._transaction), "begun_ms": self._context.now_ms}
        return Prepared([made])

    def abort(self) -> None:
        if self._begun:
            self._function.abort(self._transaction)
        if self._intent is not None:
            Intents.close(self._intent)


class _TransactionCommitter(Committer):
    """``now_ms``: the clock that a transaction's age is taken by."""

    def __init__(
        self,
        function: TwoPhaseCommitSinkFunction,
        context: CommitterContext,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._function, self._intents, self._now_ms = function, Intents(context.staging), now_ms
        self._check_lease, self._publishes = context.check_lease, context.publishes
        self._done: set[str] = set()

    def commit(self, committables: list[Any]) -> None:
        if self._publishes:
            self._decide(committables)
        self._commit(committables, self._function.commit)

    def _decide(self, committables: list[Any]) -> None:
        """Write down, look at the lease, act. An attempt that has listed intents before this was written down holds a newer
        lease, and shows here; one that lists later finds it and commits too."""
        for committable in committables:
            if committable["intent"] not in self._done:
                _ask(lambda intent, of=committable: Intents.decide(intent, of["transaction"]), committable["intent"])
        faults.point("K3.two-phase.decided", count=len(committables))
        self._check_lease()

    def recover(self, committables: list[Any]) -> None:
        self._commit(committables, self._function.recover_and_commit, recovering=True)

    def _commit(self, committables: list[Any], commit: Any, *, recovering: bool = False) -> None:
        for committable in committables:
            intent = committable["intent"]
            if intent in self._done:
                continue  # done before an error of a later one: this call is its retry
            transaction = load_stored(committable["transaction"])
            faults.point("K3.two-phase.before-commit", intent=intent)
            is_late = self._is_late(committable, transaction)
            try:
                _ask(commit, transaction)
            except (CommitError, RetryableCommitError) as error:
                if not (recovering and is_late and self._function.ignores_failures_after_timeout):
                    raise
                log.error(
                    "transaction %.200r is older than its time-out and is given up, its records are lost: %s",
                    transaction,
                    error,
                )
            faults.point("K3.two-phase.committed", intent=intent)
            # Not best effort: with its intent left behind, a committed transaction would be aborted after the next
            # restore.
            _ask(Intents.close_decided if self._publishes else Intents.close, intent)
            self._done.add(intent)
        self._done.clear()

    def _is_late(self, committable: Any, transaction: Any) -> bool:
        """Whether the outside system may have dropped it. Checkpoints of before did not say when it was begun."""
        timeout, ratio, begun = (
            self._function.transaction_timeout_ms,
            self._function.timeout_warning_ratio,
            committable.get("begun_ms"),
        )
        if timeout is None or begun is None:
            return False
        age = self._now_ms() - begun
        if ratio is not None and age > ratio * timeout:
            log.warning("transaction %.200r has been open for %d ms, its time-out is %d ms", transaction, age, timeout)
        return bool(age > timeout)

    def abort(self, committables: list[Any]) -> None:
        for committable in committables:
            self._function.abort(load_stored(committable["transaction"]))
            Intents.close(committable["intent"])

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {committable["intent"] for committable in committables}
        left, listed = self._intents.unpublished(), self._intents.open()
        faults.point("K2.two-phase.listed", intents=len(listed))
        self._check_lease()
        self._intents.remove(left)
        for intent in listed:
            if intent in wanted:
                continue
            decided, handle = Intents.decided(intent), Intents.handle(intent)
            if decided is not None:
                _ask(self._function.recover_and_commit, load_stored(decided))
                Intents.close_decided(intent)
            elif handle is not None:
                faults.point("K2.two-phase.before-abort", intent=intent)
                self._function.recover_and_abort(load_stored(handle))
                faults.point("K2.two-phase.aborted", intent=intent)
                Intents.close(intent)


def _ask(commit: Any, transaction: Any) -> None:
    try:
        commit(transaction)
    except (CommitError, RetryableCommitError):
        raise
    except Exception as error:
        raise RetryableCommitError(
            "a prepared transaction must be committed",
            where=f"transaction {transaction!r:.200}",
            found=f"{type(error).__name__}: {error}",
            cure="see what the outside system says; the commit is tried again",
        ) from error


def _pickled(transaction: Any) -> bytes:
    try:
        return cloudpickle.dumps(transaction)  # type: ignore[no-any-return]
    except TidegateError:
        raise
    except Exception as error:
        raise ProgramError(
            "a transaction handle must pickle: another process commits or aborts with it",
            where="TwoPhaseCommitSinkFunction.begin_transaction",
            found=f"{type(transaction).__name__}: {error}",
            cure="return an id or a name, and keep connections and locks out of the handle",
        ) from error

"""Two-phase commit for users: a function with begin, invoke, pre-commit, commit and abort, and the sink that calls it.

**Intents.** Each open transaction has a small file with its handle in the staging directory of the sink, the intent. Round, subtask
and attempt name it, so no two attempts share one. It exists from right after the begin until the transaction is committed or
aborted.

In at-least-once mode no checkpoint names the transactions to commit. There a second file, written right before the commit, holds
that decision. An attempt that finds both files commits again, because a committed transaction must not be aborted. The decision is
deleted after the intent, so a decision without an intent has no meaning.
"""

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
from tidegate.base.files import Files
from tidegate.base.pickling import load_stored
from tidegate.connectors.functions.function_sink import SinkContext
from tidegate.connectors.staged_file import delete_staged, file_at, name_of_attempt
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

_INTENTS = "intents"
_UNPUBLISHED, _DECIDED = ".tmp", ".decided"


class TwoPhaseCommitSinkFunction(ABC):
    """Write to an outside system with one transaction for each round and subtask that has records.

    A repeated attempt has a transaction of its own. A transaction handle must pickle, and contain everything that another process
    needs to commit or abort.

    ``begin_transaction``, ``invoke`` and ``pre_commit`` run in tasks. The other methods run on the driver, maybe in a process that
    has only the handle. ``abort`` also runs in the task when the attempt fails. After a restart, transactions of completed
    checkpoints get ``recover_and_commit``; in at-least-once mode also those whose commit had begun. All other transactions of this
    job and sink get ``recover_and_abort``.

    A crash inside ``begin_transaction`` leaves no trace of the transaction. So create in ``invoke`` what must not be left over, or
    give it a time-out.
    """

    @abstractmethod
    def begin_transaction(self) -> Any:
        """Open a transaction that no other attempt uses and no reader sees. Return its handle."""

    @abstractmethod
    def invoke(self, transaction: Any, value: Any, context: SinkContext, /) -> None:
        """Write one record into the transaction."""

    @abstractmethod
    def pre_commit(self, transaction: Any, /) -> None:
        """Step 5: flush. After this a commit must be able to succeed, whatever crashes."""

    @abstractmethod
    def commit(self, transaction: Any, /) -> None:
        """Step 8: commit. Called again after a crash or an error, also after a success: a repeated call must do nothing.

        Raise ``CommitError`` if no retry can help, for example because the transaction is lost. The job then fails and names the
        transaction. After any other error the commit is retried.
        """

    @abstractmethod
    def abort(self, transaction: Any, /) -> None:
        """Abort the transaction. May be called more than once."""

    def recover_and_commit(self, transaction: Any, /) -> None:
        """Commit after a restart. The transaction may be committed already."""
        self.commit(transaction)

    def recover_and_abort(self, transaction: Any, /) -> None:
        """Abort after a restart."""
        self.abort(transaction)

    # -- time-outs of the outside system ---------------------------------------------------------------------------------

    transaction_timeout_ms: int | None = None
    timeout_warning_ratio: float | None = None
    ignores_failures_after_timeout = False

    def set_transaction_timeout(self, transaction_timeout: int) -> TwoPhaseCommitSinkFunction:
        """Say after how many milliseconds the outside system drops a transaction. The two methods below use it."""
        self.transaction_timeout_ms = expect_int("set_transaction_timeout", transaction_timeout, "900_000")
        return self

    def enable_transaction_timeout_warnings(self, warning_ratio: float) -> TwoPhaseCommitSinkFunction:
        """Warn about a commit when this part of the time-out, from 0 to 1, has passed."""
        if isinstance(warning_ratio, bool) or not isinstance(warning_ratio, float | int) or not 0 <= warning_ratio <= 1:
            raise wrong("enable_transaction_timeout_warnings", "a number from 0 to 1", warning_ratio, "0.8")
        self.timeout_warning_ratio = float(warning_ratio)
        return self

    def ignore_failures_after_transaction_timeout(self) -> TwoPhaseCommitSinkFunction:
        """Give up a transaction that is older than its time-out and cannot be committed after a restart, and log an error.

        **Its records are lost.** Without this setting the job fails, and fails again with every start.
        """
        self.ignores_failures_after_timeout = True
        return self


class TwoPhaseCommitSink(Sink):
    """Call a ``TwoPhaseCommitSinkFunction`` as the protocol of sinks asks."""

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT
    function: TwoPhaseCommitSinkFunction

    def __init__(self, function: TwoPhaseCommitSinkFunction) -> None:
        self.function = function

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _TransactionWriter(self.function, context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _TransactionCommitter(self.function, context)


class _TransactionWriter(SinkWriter):
    """Begin the transaction with the first record. A subtask without input does not touch the outside system."""

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
        files, name = Files(self._context.staging), f"{_INTENTS}/{name_of_attempt(self._context)}"
        files.publish(name, _pickled(self._transaction))
        self._intent = files.location(name)

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if not self._begun:
            return Prepared()
        faults.point("K1.two-phase.pre-commit", attempt=self._context.attempt)
        self._function.pre_commit(self._transaction)
        # Pickled again: pre_commit may have added data to the handle that the commit needs.
        transaction = _pickled(self._transaction)
        return Prepared([{"intent": self._intent, "transaction": transaction, "begun_ms": self._context.now_ms}])

    def abort(self) -> None:
        if self._begun:
            self._function.abort(self._transaction)
        if self._intent is not None:
            delete_staged(self._intent)


class _TransactionCommitter(Committer):
    """Commit and abort transactions. ``now_ms`` is the clock for the age of a transaction."""

    def __init__(
        self,
        function: TwoPhaseCommitSinkFunction,
        context: CommitterContext,
        now_ms: Callable[[], int] = lambda: time.time_ns() // 1_000_000,
    ) -> None:
        self._function, self._context, self._now_ms = function, context, now_ms
        self._done: set[str] = set()

    def commit(self, committables: list[Any]) -> None:
        if self._context.publishes:
            self._decide(committables)
        self._commit(committables, self._function.commit)

    def _decide(self, committables: list[Any]) -> None:
        """Write the decision down, check the lease, then act.

        An attempt that listed intents before the decision was written holds a newer lease, so the check here fails. An attempt that
        lists them later finds the decision, and commits too.
        """
        for committable in committables:
            if committable["intent"] not in self._done:
                _retryable(lambda intent, of=committable: _decide(intent, of["transaction"]), committable["intent"])
        faults.point("K3.two-phase.decided", count=len(committables))
        self._context.check_lease()

    def recover(self, committables: list[Any]) -> None:
        self._commit(committables, self._function.recover_and_commit, recovering=True)

    def _commit(self, committables: list[Any], commit: Any, *, recovering: bool = False) -> None:
        for committable in committables:
            intent = committable["intent"]
            if intent in self._done:
                continue  # done before a later transaction failed: this call is the retry
            transaction = load_stored(committable["transaction"])
            faults.point("K3.two-phase.before-commit", intent=intent)
            is_late = self._is_late(committable, transaction)
            try:
                _retryable(commit, transaction)
            except (CommitError, RetryableCommitError) as error:
                if not (recovering and is_late and self._function.ignores_failures_after_timeout):
                    raise
                log.error(
                    "transaction %.200r is older than its time-out and is given up; its records are lost: %s",
                    transaction,
                    error,
                )
            faults.point("K3.two-phase.committed", intent=intent)
            # Not best effort: a committed transaction whose intent stays would be aborted after the next restore.
            _retryable(_close_decided if self._context.publishes else delete_staged, intent)
            self._done.add(intent)
        self._done.clear()

    def _is_late(self, committable: Any, transaction: Any) -> bool:
        """Return whether the outside system may have dropped the transaction. Old checkpoints lack the time of its begin."""
        timeout, ratio, begun = (
            self._function.transaction_timeout_ms,
            self._function.timeout_warning_ratio,
            committable.get("begun_ms"),
        )
        if timeout is None or begun is None:
            return False
        age = self._now_ms() - begun
        if ratio is not None and age > ratio * timeout:
            log.warning("transaction %.200r has been open for %d ms; its time-out is %d ms", transaction, age, timeout)
        return bool(age > timeout)

    def abort(self, committables: list[Any]) -> None:
        for committable in committables:
            self._function.abort(load_stored(committable["transaction"]))
            delete_staged(committable["intent"])

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {committable["intent"] for committable in committables}
        files = Files(self._context.staging)
        names = files.list(_INTENTS)
        intents = {name: files.location(name) for name in names if not name.endswith((_UNPUBLISHED, _DECIDED))}
        faults.point("K2.two-phase.listed", intents=len(intents))
        self._context.check_lease()
        for name in names:  # what a crash left: files that never became intents, and decisions without an intent
            if name not in intents and name.removesuffix(_DECIDED) not in intents:
                files.delete(name)
        for intent in intents.values():
            if intent in wanted:
                continue
            decided, handle = _stored(intent + _DECIDED), _stored(intent)
            if decided is not None:
                _retryable(self._function.recover_and_commit, load_stored(decided))
                _close_decided(intent)
            elif handle is not None:
                faults.point("K2.two-phase.before-abort", intent=intent)
                self._function.recover_and_abort(load_stored(handle))
                faults.point("K2.two-phase.aborted", intent=intent)
                delete_staged(intent)


def _decide(intent: str, handle: bytes) -> None:
    """Store the decision to commit with this handle. May be called again."""
    files, name = file_at(intent + _DECIDED)
    files.replace(name, handle)


def _stored(address: str) -> bytes | None:
    """Read the handle of an intent or a decision. None: it does not exist, or was deleted in the meantime."""
    files, name = file_at(address)
    return files.read_if_exists(name)


def _close_decided(intent: str) -> None:
    delete_staged(intent)
    delete_staged(intent + _DECIDED)


def _retryable(commit: Any, transaction: Any) -> None:
    try:
        commit(transaction)
    except (CommitError, RetryableCommitError):
        raise
    except Exception as error:
        raise RetryableCommitError(
            "The commit of a prepared transaction failed",
            where=f"transaction {transaction!r:.200}",
            found=f"{type(error).__name__}: {error}",
            cure="check the outside system; the job retries the commit",
        ) from error


def _pickled(transaction: Any) -> bytes:
    try:
        return cloudpickle.dumps(transaction)  # type: ignore[no-any-return]
    except TidegateError:
        raise
    except Exception as error:
        raise ProgramError(
            "A transaction handle cannot be pickled, and another process needs it to commit or abort",
            where="TwoPhaseCommitSinkFunction.begin_transaction",
            found=f"{type(transaction).__name__}: {error}",
            cure="return an id or a name, and keep connections and locks out of the handle",
        ) from error

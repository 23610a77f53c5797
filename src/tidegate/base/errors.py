"""All errors of Tidegate: one root, one form of message, and whether a restart can help."""

from __future__ import annotations

from typing import Self

from tidegate.base.portable_errors import PortableError


class TidegateError(PortableError):
    """The root of all errors. A message has up to four parts:

    ``rule``: what is wrong now, in the present tense. ``where``: operator, file, line, option. ``found``: the value or event.
    ``cure``: an imperative with a command or a key.

    ``restart_helps`` tells the restart strategy whether a restart from the last checkpoint can succeed. Every error pickles, with
    all attributes of its subclass and with its causes.
    """

    restart_helps = True

    def __init__(
        self, rule: str, *, where: str | None = None, found: str | None = None, cure: str | None = None
    ) -> None:
        self.rule, self.where, self.found, self.cure = rule, where, found, cure
        super().__init__(self._message())

    def _message(self) -> str:
        parts = (("where", self.where), ("found", self.found), ("cure", self.cure))
        return "\n".join([self.rule, *(f"  {label}: {text}" for label, text in parts if text)])

    def located(self, where: str) -> Self:
        """Set ``where`` if it is missing, and return this error."""
        if not self.where:
            self.where = where
            self.args = (self._message(),)
        return self

    def having(self, *, found: str | None = None, cure: str | None = None) -> Self:
        """Replace ``found`` or ``cure``, and return this error."""
        self.found, self.cure = found or self.found, cure or self.cure
        self.args = (self._message(),)
        return self

    def within(self, where: str) -> Self:
        """Put an outer place before ``where``, and return this error."""
        self.where = f"{where}, {self.where}" if self.where else where
        self.args = (self._message(),)
        return self


class ConfigurationError(TidegateError, ValueError):
    """A configuration key or value is invalid. Raised before anything starts."""

    restart_helps = False


class ProgramError(TidegateError, ValueError):
    """The user's program is invalid (duplicate uid, parallelism above the maximum, a function that cannot be pickled ...)."""

    restart_helps = False


class NotInTidegateError(ProgramError, ModuleNotFoundError):
    """A program imports a name of PyFlink that Tidegate does not have. ``name``: the full name."""

    def __init__(
        self, rule: str, *, found: str | None = None, cure: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(rule, found=found, cure=cure)
        self.name = name


class ArgumentTypeError(TidegateError, TypeError):
    """An argument of the API has the wrong type."""

    restart_helps = False


class DependencyError(TidegateError):
    """Files, archives or requirements of a job cannot be installed on a worker. Names host and cause."""

    restart_helps = False


class UserCodeError(TidegateError):
    """A user function raised. Names operator, user file and line, and the record.

    ``record`` and ``key``: as short texts, if the function was called for a record."""

    record: str | None = None
    key: str | None = None


class StateAccessError(TidegateError, ValueError):
    """State or a timer is used without a key, or with another type than declared."""

    restart_helps = False


class StateFormatError(TidegateError):
    """A stored value or key cannot be encoded or decoded with the declared type."""

    restart_helps = False


class PickleRefusedError(StateFormatError):
    """Stored data is pickled, and the user has forbidden to load pickles."""


class TextError(TidegateError, ValueError):
    """A text contains characters that its character set lacks. The same record will fail again."""

    restart_helps = False


class StorageError(TidegateError):
    """Checkpoint storage cannot be read or written, or a file differs from its handle."""


class CorruptFileError(StorageError):
    """A file is missing or truncated, or its hash differs. Names the file, the expected and the found content."""

    restart_helps = False


class RestoreError(TidegateError):
    """A checkpoint cannot be restored into this program. Reports all mismatches together; nothing has changed."""

    restart_helps = False


class NewerFormatError(RestoreError, StateFormatError):
    """A file of a checkpoint was written by a newer Tidegate."""


class SnapshotError(TidegateError, ValueError):
    """A snapshot lacks the requested operator or state, or cannot be written."""

    restart_helps = False


class CheckpointError(TidegateError):
    """More checkpoints in a row failed than tolerated. The message has the reason."""


class LeaseError(TidegateError):
    """Another live attempt owns the job's directory."""

    restart_helps = False


class FencedError(LeaseError):
    """This attempt lost its lease to a newer attempt and must not publish, commit or delete anything."""


class RoundError(TidegateError):
    """A round failed: barriers or attempt tokens disagree, or a Spark job failed. Nothing of the round was accepted."""


class EngineLostError(RoundError):
    """The engine that runs the rounds is gone (Spark's JVM died). The next attempt starts a new engine."""


class EngineUnavailableError(RoundError):
    """The engine that runs the rounds does not start, or is gone and cannot be started here. A new process has to continue."""

    restart_helps = False


class CommitError(TidegateError):
    """A sink cannot commit the output of a completed checkpoint, after all retries. Names the uncommitted output."""


class OutputLostError(CommitError):
    """The output of a completed checkpoint is missing in the external system: no retry and no restart can restore it."""

    restart_helps = False


class OutputClosedError(CommitError):
    """The standard output or error on which a job prints its records is closed."""

    restart_helps = False


class RetryableCommitError(TidegateError):
    """Raised by a committer: the external system rejects the commit now, and a retry may succeed."""


class ServiceError(TidegateError):
    """An external system (a broker, a database) does not answer, refuses a request, or does not fit the connector."""


class AccessError(ServiceError):
    """User, password or permissions are wrong: a retry does not help."""

    restart_helps = False


class RowError(TidegateError, ValueError):
    """A table refuses a row: a value has the wrong type, or violates a constraint. Names the column or constraint, and the key of
    the row. The table will refuse the same row again."""

    restart_helps = False


class JobFailedError(TidegateError):
    """The job ended as FAILED. Its cause is chained."""

    restart_helps = False


class JobCancelledError(TidegateError):
    """The job was cancelled while a caller waited for its result."""

    restart_helps = False


class JobSuspendedError(TidegateError):
    """The driver was interrupted (Ctrl-C, SIGTERM) and has suspended the job: a new start continues it."""

    restart_helps = False


class UnknownJobError(TidegateError, ValueError):
    """No registered job has this id."""

    restart_helps = False


class AmbiguousJobError(UnknownJobError):
    """Several jobs have ids that begin with this text."""


class JobOverError(TidegateError):
    """A command names a job that has ended."""

    restart_helps = False


class DriverDiedError(JobOverError):
    """A command names a job whose driver died without reporting an end."""


class NoLogError(TidegateError):
    """No known file contains the output of a job's driver."""

    restart_helps = False


class UnreachableError(TidegateError):
    """The driver of a job does not answer, or not to this user."""

    restart_helps = False


class RefusedError(CheckpointError):
    """A job refuses a command, and nothing has changed."""

    restart_helps = False


class NoTargetError(RefusedError, ConfigurationError):
    """A savepoint has no target directory."""


class SnapshotInUseError(RefusedError, RestoreError):
    """A snapshot cannot be deleted: a job may have to restore it."""


class CommandFailedError(TidegateError):
    """A job tried to execute a command and failed."""

    restart_helps = False


class InternalError(TidegateError):
    """A bug in Tidegate itself. Please report it with the message."""

    restart_helps = False

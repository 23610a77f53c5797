"""All errors of Tidegate: one root, one message formula, each says whether a restart can help."""

from __future__ import annotations

from typing import Self

from tidegate.base.portable_errors import PortableError


class TidegateError(PortableError):
    """Root of all errors. The message is a formula: the rule; where; what was found; the cure.

    ``restart_helps`` tells the restart strategy whether running again from the last checkpoint can succeed.
    Every error pickles, whatever its subclass adds, and takes its causes along.
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
        """This error, with the place it lacked."""
        if not self.where:
            self.where = where
            self.args = (self._message(),)
        return self

    def having(self, *, found: str | None = None, cure: str | None = None) -> Self:
        """This error, with another ``found`` or another cure."""
        self.found, self.cure = found or self.found, cure or self.cure
        self.args = (self._message(),)
        return self

    def within(self, where: str) -> Self:
        """This error, with the place that its own is in."""
        self.where = f"{where}, {self.where}" if self.where else where
        self.args = (self._message(),)
        return self


class ConfigurationError(TidegateError, ValueError):
    """A configuration key or value is wrong. Found before anything is started."""

    restart_helps = False


class ProgramError(TidegateError, ValueError):
    """The user's program is not valid (duplicate uid, parallelism above the maximum, a function that cannot be pickled ...)."""

    restart_helps = False


class NotInTidegateError(ProgramError, ModuleNotFoundError):
    """A program imports something of PyFlink that Tidegate does not have. ``name``: the whole name by which it was asked for."""

    def __init__(
        self, rule: str, *, found: str | None = None, cure: str | None = None, name: str | None = None
    ) -> None:
        super().__init__(rule, found=found, cure=cure)
        self.name = name


class ArgumentTypeError(TidegateError, TypeError):
    """A value of the wrong type was handed to the API."""

    restart_helps = False


class DependencyError(TidegateError):
    """What a job needs in the workers (files, archives, requirements) could not be brought there. Names host and cause."""

    restart_helps = False


class UserCodeError(TidegateError):
    """A user function raised. Names operator, user file and line, and the record."""


class StateAccessError(TidegateError, ValueError):
    """State or a timer was used where there is no key, or with another type than it was declared with."""

    restart_helps = False


class StateFormatError(TidegateError):
    """A stored value or key cannot be encoded or decoded with the declared type."""

    restart_helps = False


class PickleRefusedError(StateFormatError):
    """Stored data is pickled, and the user said that pickles are not loaded."""


class TextError(TidegateError, ValueError):
    """A text has characters its character set does not have. The same record will fail again."""

    restart_helps = False


class StorageError(TidegateError):
    """Reading or writing checkpoint storage failed, or a file is not what its handle says."""


class CorruptFileError(StorageError):
    """A file is missing, short, or its hash differs. Names file, expected and found."""

    restart_helps = False


class RestoreError(TidegateError):
    """A checkpoint cannot be restored into this program. All mismatches are reported together, nothing was touched."""

    restart_helps = False


class NewerFormatError(RestoreError, StateFormatError):
    """A file of a checkpoint was written by a newer Tidegate."""


class SnapshotError(TidegateError, ValueError):
    """What was asked of a snapshot is not in it, or cannot be written into one."""

    restart_helps = False


class CheckpointError(TidegateError):
    """A checkpoint failed for more times in a row than tolerated; the reason is in the message."""


class LeaseError(TidegateError):
    """Another live attempt owns the job's directory."""

    restart_helps = False


class FencedError(LeaseError):
    """This attempt lost its lease to a newer one and must not publish, commit or delete anything."""


class RoundError(TidegateError):
    """A round failed: barriers or attempt tokens disagree, or a Spark job failed. Nothing of it was accepted."""


class EngineLostError(RoundError):
    """What runs the rounds is gone (Spark's JVM died). The next attempt starts a new one."""


class EngineUnavailableError(RoundError):
    """What runs the rounds does not start, or is gone and not ours to start again. A new process has to go on."""

    restart_helps = False


class CommitError(TidegateError):
    """A sink could not commit what a completed checkpoint holds, after all retries. Names what is not committed."""


class OutputLostError(CommitError):
    """What a completed checkpoint holds is gone from the outside system: no retry and no restart brings it back."""

    restart_helps = False


class OutputClosedError(CommitError):
    """Nobody reads the standard output or error any more on which a job prints its records."""

    restart_helps = False


class RetryableCommitError(TidegateError):
    """Raised by a committer: the outside system did not take the commit now; trying again may succeed."""


class ServiceError(TidegateError):
    """An outside system (a broker, a database) does not answer, refuses, or is not what a connector needs."""


class AccessError(ServiceError):
    """User, password or rights are wrong: trying again does not help."""

    restart_helps = False


class RowError(TidegateError, ValueError):
    """A row that its table does not take: a value of the wrong type, or a constraint that it violates. Names column or constraint,
    and the key of the row. The same row will be refused again."""

    restart_helps = False


class JobFailedError(TidegateError):
    """The job ended as FAILED; the cause is chained."""

    restart_helps = False


class JobCancelledError(TidegateError):
    """The job was cancelled while somebody waited for its result."""

    restart_helps = False


class JobSuspendedError(TidegateError):
    """The driver was told to end (Ctrl-C, SIGTERM) and has given the job back: a new start goes on with it."""

    restart_helps = False


class UnknownJobError(TidegateError, ValueError):
    """No job that is registered has this id."""

    restart_helps = False


class AmbiguousJobError(UnknownJobError):
    """Several jobs have ids that begin so."""


class JobOverError(TidegateError):
    """A command for a job that has ended."""

    restart_helps = False


class DriverDiedError(JobOverError):
    """A command for a job whose driver is gone without having told an end."""


class NoLogError(TidegateError):
    """The output of a job's driver is in no file that commands know."""

    restart_helps = False


class UnreachableError(TidegateError):
    """The driver of a job does not answer, or not to us."""

    restart_helps = False


class RefusedError(CheckpointError):
    """A job does not do what a command says, and nothing has changed."""

    restart_helps = False


class NoTargetError(RefusedError, ConfigurationError):
    """A savepoint without a directory to go into."""


class SnapshotInUseError(RefusedError, RestoreError):
    """A snapshot that a job may have to restore."""


class CommandFailedError(TidegateError):
    """A job tried to do what a command says and could not."""

    restart_helps = False


class InternalError(TidegateError):
    """A bug in Tidegate itself. Please report it with the message."""

    restart_helps = False

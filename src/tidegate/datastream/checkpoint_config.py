"""CheckpointConfig: the settings of checkpoints as methods over the environment's configuration."""

from __future__ import annotations

from typing import Any

from tidegate.base.arguments import expect_int, wrong
from tidegate.base.former_names import former
from tidegate.common.configuration import Configuration, meaning
from tidegate.common.options import (
    ALIGNED_TIMEOUT,
    CHECKPOINT_CONCURRENT,
    CHECKPOINT_DIR,
    CHECKPOINT_INTERVAL,
    CHECKPOINT_MIN_PAUSE,
    CHECKPOINT_MODE,
    CHECKPOINT_RETENTION,
    CHECKPOINT_STORAGE,
    CHECKPOINT_TIMEOUT,
    CHECKPOINT_TOLERABLE,
    FORCE_UNALIGNED,
    IGNORED_IN_FLIGHT,
    MAX_STATE_SIZE,
    UNALIGNED,
    Option,
)
from tidegate.common.time import Duration, millis_of
from tidegate.datastream.checkpoint_storage import (
    CheckpointStorage,
    FileSystemCheckpointStorage,
    JobManagerCheckpointStorage,
)
from tidegate.datastream.checkpointing_mode import CheckpointingMode
from tidegate.datastream.externalized_checkpoint_retention import ExternalizedCheckpointRetention

__all__ = ["CheckpointConfig"]

UNLIMITED_FAILURES = (1 << 31) - 1


class CheckpointConfig:
    """A view of the environment's configuration. Values are checked when they are set."""

    DEFAULT_MODE = CheckpointingMode.EXACTLY_ONCE
    DEFAULT_TIMEOUT = 10 * 60 * 1000
    DEFAULT_MIN_PAUSE_BETWEEN_CHECKPOINTS = 0
    DEFAULT_MAX_CONCURRENT_CHECKPOINTS = 1

    def __init__(self, configuration: Configuration) -> None:
        self._configuration = configuration

    def is_checkpointing_enabled(self) -> bool:
        """Return whether there is an interval."""
        return self._configuration.read(CHECKPOINT_INTERVAL) is not None

    def get_checkpointing_mode(self) -> CheckpointingMode:
        """EXACTLY_ONCE unless set."""
        return CheckpointingMode[self._configuration.read(CHECKPOINT_MODE)]

    def set_checkpointing_mode(self, checkpointing_mode: CheckpointingMode) -> CheckpointConfig:
        """EXACTLY_ONCE or AT_LEAST_ONCE."""
        if not isinstance(checkpointing_mode, CheckpointingMode):
            raise wrong("set_checkpointing_mode", "a CheckpointingMode", checkpointing_mode, "EXACTLY_ONCE of it")
        return self._set(CHECKPOINT_MODE, checkpointing_mode.name)

    def get_checkpoint_interval(self) -> int:
        """Return milliseconds, -1 if there are no checkpoints."""
        interval = self._configuration.read(CHECKPOINT_INTERVAL)
        return -1 if interval is None else int(interval)

    def set_checkpoint_interval(self, checkpoint_interval: int) -> CheckpointConfig:
        """At least 10 ms."""
        return self._set_int(CHECKPOINT_INTERVAL, checkpoint_interval, "set_checkpoint_interval")

    def get_checkpoint_timeout(self) -> int:
        """Return the value in milliseconds."""
        return int(self._configuration.read(CHECKPOINT_TIMEOUT))

    def set_checkpoint_timeout(self, checkpoint_timeout: int) -> CheckpointConfig:
        """Set the timeout, at least 10 ms. A checkpoint that takes longer is aborted, and the job continues."""
        return self._set_int(CHECKPOINT_TIMEOUT, checkpoint_timeout, "set_checkpoint_timeout")

    def get_min_pause_between_checkpoints(self) -> int:
        """Return the value in milliseconds."""
        return int(self._configuration.read(CHECKPOINT_MIN_PAUSE))

    def set_min_pause_between_checkpoints(self, min_pause_between_checkpoints: int) -> CheckpointConfig:
        """Set the pause from the end of one checkpoint to the trigger of the next. It makes the number of concurrent checkpoints
        1."""
        return self._set_int(CHECKPOINT_MIN_PAUSE, min_pause_between_checkpoints, "set_min_pause_between_checkpoints")

    def get_max_concurrent_checkpoints(self) -> int:
        """Return the most concurrent checkpoints."""
        return int(self._configuration.read(CHECKPOINT_CONCURRENT))

    def set_max_concurrent_checkpoints(self, max_concurrent_checkpoints: int) -> CheckpointConfig:
        """Set the most concurrent checkpoints, at least 1."""
        return self._set_int(CHECKPOINT_CONCURRENT, max_concurrent_checkpoints, "set_max_concurrent_checkpoints")

    def is_fail_on_checkpointing_errors(self) -> bool:
        """Return whether the first checkpoint that fails also fails the job."""
        return self.get_tolerable_checkpoint_failure_number() == 0

    def set_fail_on_checkpointing_errors(self, fail_on_checkpointing_errors: bool) -> CheckpointConfig:
        """True: the first failed checkpoint fails the job. False: none does."""
        return self.set_tolerable_checkpoint_failure_number(0 if fail_on_checkpointing_errors else UNLIMITED_FAILURES)

    def get_tolerable_checkpoint_failure_number(self) -> int:
        """Return how many checkpoints may fail in a row before the job fails."""
        return int(self._configuration.read(CHECKPOINT_TOLERABLE))

    def set_tolerable_checkpoint_failure_number(self, tolerable_checkpoint_failure_number: int) -> CheckpointConfig:
        """Set how many checkpoints in a row may fail without failing the job."""
        return self._set_int(
            CHECKPOINT_TOLERABLE, tolerable_checkpoint_failure_number, "set_tolerable_checkpoint_failure_number"
        )

    def set_externalized_checkpoint_retention(
        self, retention_mode: ExternalizedCheckpointRetention
    ) -> CheckpointConfig:
        """Set whether checkpoints stay when the job is cancelled. When the job fails, they stay."""
        if not isinstance(retention_mode, ExternalizedCheckpointRetention):
            raise wrong(
                "set_externalized_checkpoint_retention",
                "an ExternalizedCheckpointRetention",
                retention_mode,
                "ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION keeps checkpoints",
            )
        return self._set(CHECKPOINT_RETENTION, retention_mode.name)

    def enable_externalized_checkpoints(self, cleanup_mode: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """Do the same as ``set_externalized_checkpoint_retention``, under its name in PyFlink 1.x."""
        former("CheckpointConfig.enable_externalized_checkpoints", "use set_externalized_checkpoint_retention")
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def set_externalized_checkpoint_cleanup(self, cleanup_mode: ExternalizedCheckpointRetention) -> CheckpointConfig:
        """Do the same as ``set_externalized_checkpoint_retention``, under its name in PyFlink 1.x."""
        former("CheckpointConfig.set_externalized_checkpoint_cleanup", "use set_externalized_checkpoint_retention")
        return self.set_externalized_checkpoint_retention(cleanup_mode)

    def get_externalized_checkpoint_cleanup(self) -> ExternalizedCheckpointRetention:
        """Do the same as ``get_externalized_checkpoint_retention``, under its name in PyFlink 1.x."""
        former("CheckpointConfig.get_externalized_checkpoint_cleanup", "use get_externalized_checkpoint_retention")
        return self.get_externalized_checkpoint_retention()

    def is_externalized_checkpoints_enabled(self) -> bool:
        """Return whether checkpoints outlive the cancellation of the job."""
        none = ExternalizedCheckpointRetention.NO_EXTERNALIZED_CHECKPOINTS
        return self.get_externalized_checkpoint_retention() is not none

    def get_externalized_checkpoint_retention(self) -> ExternalizedCheckpointRetention:
        """Return whether checkpoints stay when the job is cancelled."""
        return ExternalizedCheckpointRetention[self._configuration.read(CHECKPOINT_RETENTION)]

    def is_unaligned_checkpoints_enabled(self) -> bool:
        """As set by ``enable_unaligned_checkpoints``."""
        return bool(self._configuration.read(UNALIGNED))

    def enable_unaligned_checkpoints(self, enabled: bool = True) -> CheckpointConfig:
        """Let checkpoints store the records in flight instead of waiting for them."""
        return self._set(UNALIGNED, enabled)

    def disable_unaligned_checkpoints(self) -> CheckpointConfig:
        """Use aligned checkpoints: the default."""
        return self.enable_unaligned_checkpoints(False)

    def set_aligned_checkpoint_timeout(self, alignment_timeout: Duration) -> CheckpointConfig:
        """Set how long a checkpoint waits for the records before it, until it becomes unaligned; 0: not at all."""
        return self._set(ALIGNED_TIMEOUT, millis_of("set_aligned_checkpoint_timeout", alignment_timeout))

    def get_aligned_checkpoint_timeout(self) -> Duration:
        """Return how long a checkpoint stays aligned before it becomes unaligned."""
        return Duration.of_millis(self._configuration.read(ALIGNED_TIMEOUT))

    def set_alignment_timeout(self, alignment_timeout: Duration) -> CheckpointConfig:
        """Do the same as ``set_aligned_checkpoint_timeout``, under its older name."""
        return self.set_aligned_checkpoint_timeout(alignment_timeout)

    def get_alignment_timeout(self) -> Duration:
        """Do the same as ``get_aligned_checkpoint_timeout``, under its older name."""
        return self.get_aligned_checkpoint_timeout()

    def set_force_unaligned_checkpoints(self, force_unaligned_checkpoints: bool = True) -> CheckpointConfig:
        """Also allow records of forward, rescale and custom connections in flight. Such a checkpoint restores only with the same
        parallelism."""
        return self._set(FORCE_UNALIGNED, force_unaligned_checkpoints)

    def is_force_unaligned_checkpoints(self) -> bool:
        """As set by ``set_force_unaligned_checkpoints``."""
        return bool(self._configuration.read(FORCE_UNALIGNED))

    def set_checkpoint_id_of_ignored_in_flight_data(self, checkpoint_id: int) -> CheckpointConfig:
        """Drop the records in flight of the checkpoint with this id when it is restored."""
        return self._set(IGNORED_IN_FLIGHT, checkpoint_id)

    def get_checkpoint_id_of_ignored_in_flight_data(self) -> int:
        """Return the id of the checkpoint whose records in flight are dropped; -1: none."""
        return int(self._configuration.read(IGNORED_IN_FLIGHT))

    def set_checkpoint_storage_dir(self, checkpoint_path: str) -> CheckpointConfig:
        """Return the directory of checkpoints (PyFlink 1.x; the key is ``execution.checkpointing.dir``)."""
        return self.set_checkpoint_storage(FileSystemCheckpointStorage(checkpoint_path))

    def set_checkpoint_storage(self, storage: CheckpointStorage) -> CheckpointConfig:
        """Where checkpoints are kept: a ``FileSystemCheckpointStorage`` or a ``JobManagerCheckpointStorage``."""
        if isinstance(storage, JobManagerCheckpointStorage):
            self._set(CHECKPOINT_STORAGE, "jobmanager")._set(MAX_STATE_SIZE, storage.get_max_state_size())
            path = storage.get_checkpoint_path()
            return self if path is None else self._set(CHECKPOINT_DIR, path)
        if not isinstance(storage, FileSystemCheckpointStorage):
            raise wrong("set_checkpoint_storage", "a FileSystemCheckpointStorage", storage, "give it a directory")
        return self._set(CHECKPOINT_STORAGE, "filesystem")._set(CHECKPOINT_DIR, storage.get_checkpoint_path())

    def get_checkpoint_storage(self) -> FileSystemCheckpointStorage | JobManagerCheckpointStorage | None:
        """Where checkpoints are kept; None if no directory is set."""
        path = self._configuration.read(CHECKPOINT_DIR)
        if self._configuration.read(CHECKPOINT_STORAGE) == "jobmanager":
            return JobManagerCheckpointStorage(path, self._configuration.read(MAX_STATE_SIZE))
        return None if path is None else FileSystemCheckpointStorage(path)

    def _set_int(self, option: Option, value: int, method: str) -> CheckpointConfig:
        return self._set(option, expect_int(method, value, option.doc))

    def _set(self, option: Option, value: Any) -> CheckpointConfig:
        meaning(option.key)  # warns once if the option has no effect
        self._configuration.write(option, value)
        return self

"""Checkpoint storage: where completed checkpoints live."""

from __future__ import annotations

from abc import ABC

from tidegate.base.arguments import expect_int, expect_text

__all__ = ["CheckpointStorage", "FileSystemCheckpointStorage", "JobManagerCheckpointStorage"]


class CheckpointStorage(ABC):  # noqa: B024 - a common name, nothing in common
    """The argument of ``CheckpointConfig.set_checkpoint_storage``."""


class JobManagerCheckpointStorage(CheckpointStorage):
    """The memory of the driver's host, for small state; it is lost with the host. With a path: that directory, also for small
    state. Only for masters on this host (``local[...]``)."""

    DEFAULT_MAX_STATE_SIZE = 5 * 1024 * 1024

    def __init__(self, checkpoint_path: str | None = None, max_state_size: int | None = None) -> None:
        cure = 'for example "file:///var/checkpoints"'
        self._path = None
        if checkpoint_path is not None:
            self._path = expect_text("JobManagerCheckpointStorage", checkpoint_path, cure).rstrip("/") or "/"
        size = self.DEFAULT_MAX_STATE_SIZE if max_state_size is None else max_state_size
        self._max_state_size = expect_int("JobManagerCheckpointStorage", size, "pass a number of bytes")

    def get_checkpoint_path(self) -> str | None:
        """The directory that was given, if one was."""
        return self._path

    def get_max_state_size(self) -> int:
        """Most state a subtask of an operator may have, in bytes."""
        return self._max_state_size

    def get_savepoint_path(self) -> str | None:
        """Return None: ``execution.checkpointing.savepoint-dir`` sets the directory of savepoints."""
        return None


class FileSystemCheckpointStorage(CheckpointStorage):
    """A directory: a local path or any fsspec address (``file:``, ``hdfs:``, ``s3:`` ...)."""

    MAX_FILE_STATE_THRESHOLD = 1024 * 1024

    def __init__(
        self, checkpoint_path: str, file_state_size_threshold: int | None = None, write_buffer_size: int = -1
    ) -> None:
        cure = 'for example "file:///var/checkpoints"'
        path = expect_text("FileSystemCheckpointStorage", checkpoint_path, cure)
        self._path = path.rstrip("/") or "/"
        self._threshold = 20480 if file_state_size_threshold is None else file_state_size_threshold
        self._buffer = max(4096, self._threshold // 8) if write_buffer_size < 0 else write_buffer_size

    def get_checkpoint_path(self) -> str:
        """The directory that was given."""
        return self._path

    def get_savepoint_path(self) -> str | None:
        """Return None: ``execution.checkpointing.savepoint-dir`` sets the directory of savepoints."""
        return None

    def get_min_file_size_threshold(self) -> int:
        """Return a value for programs that read it: state is never stored in the metadata."""
        return self._threshold

    def get_write_buffer_size(self) -> int:
        """Return a value for programs that read it: files are written at once."""
        return self._buffer

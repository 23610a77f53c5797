"""Compaction of small files: a part continues over several checkpoints, and appears as one file instead of many.

In Flink an operator after the sink collects finished, hidden files and merges them. Here an unfinished part is a list of fragments
in the checkpoint anyway. So a part that is too small for a file is not finished but continues, and a crash treats it as any
unfinished part. Files of different subtasks are not merged.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.base.arguments import expect_int
from tidegate.base.errors import ProgramError
from tidegate.common.configuration import notice


@dataclass(frozen=True)
class FileCompactStrategy:
    """Decide when small files together make one file. A condition that is None does not count."""

    size_threshold: int | None
    num_checkpoints: int | None

    @staticmethod
    def builder() -> FileCompactStrategy.Builder:
        """Begin a strategy. It needs a size or a number of checkpoints."""
        return FileCompactStrategy.Builder()

    def is_enough(self, size: int, checkpoints: int) -> bool:
        """Return whether this many bytes, or this many checkpoints since the first byte, make a file."""
        by_size = self.size_threshold is not None and size >= self.size_threshold
        return by_size or (self.num_checkpoints is not None and checkpoints >= self.num_checkpoints)

    class Builder:
        """Describes a strategy."""

        def __init__(self) -> None:
            self._size: int | None = None
            self._checkpoints: int | None = None

        def enable_compaction_on_checkpoint(
            self, num_checkpoints_before_compaction: int
        ) -> FileCompactStrategy.Builder:
            """Finish a file after this many checkpoints at the latest."""
            self._checkpoints = _positive("enable_compaction_on_checkpoint", num_checkpoints_before_compaction)
            return self

        def set_size_threshold(self, size_threshold: int) -> FileCompactStrategy.Builder:
            """Finish a file as soon as it has this many bytes."""
            self._size = _positive("set_size_threshold", size_threshold)
            return self

        def set_num_compact_threads(self, num_compact_threads: int) -> FileCompactStrategy.Builder:
            """Accepted without effect: the subtasks that write files merge them."""
            _positive("set_num_compact_threads", num_compact_threads)
            notice("FileCompactStrategy.set_num_compact_threads", "the subtasks that write files merge them")
            return self

        def build(self) -> FileCompactStrategy:
            """Return the strategy. Raise ProgramError if it has no condition."""
            if self._size is None and self._checkpoints is None:
                raise ProgramError(
                    "At least one of conditions to be configured",
                    where="FileCompactStrategy.builder()",
                    found="neither a size nor a number of checkpoints",
                    cure="call set_size_threshold or enable_compaction_on_checkpoint",
                )
            return FileCompactStrategy(self._size, self._checkpoints)


def _positive(method: str, number: int) -> int:
    if expect_int(f"FileCompactStrategy.{method}", number, "a number above 0") <= 0:
        raise ProgramError(
            f"{method} takes a number above 0", where="FileCompactStrategy", found=str(number), cure="pass 1 or more"
        )
    return number


@dataclass(frozen=True)
class FileCompactor:
    """Say how small files become one. ``delimiter`` None: each stays a file. Bulk formats merge records and need no delimiter."""

    delimiter: bytes | None

    @staticmethod
    def concat_file_compactor(file_delimiter: bytes | None = None) -> FileCompactor:
        """Concatenate files, with the delimiter between them."""
        return FileCompactor(file_delimiter or b"")

    @staticmethod
    def identical_file_compactor() -> FileCompactor:
        """Keep every file."""
        return FileCompactor(None)


@dataclass(frozen=True)
class Compaction:
    """What the writer needs of strategy and compactor."""

    strategy: FileCompactStrategy
    delimiter: bytes

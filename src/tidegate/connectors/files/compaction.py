"""Compaction of small files: a part goes on over several checkpoints, and appears as one file instead of many.

In Flink finished files are collected, hidden, and merged by an operator behind the sink. Here an unfinished part is a list of
fragments in the checkpoint anyway, so a file that would be too small is not finished but goes on; what a crash leaves of it is
what it leaves of any unfinished part. Files of different subtasks are not merged.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidegate.base.arguments import expect_int
from tidegate.base.errors import ProgramError
from tidegate.common.configuration import notice


@dataclass(frozen=True)
class FileCompactStrategy:
    """When small files together are enough for one. ``size_threshold``, ``num_checkpoints`` None: that does not count."""

    size_threshold: int | None
    num_checkpoints: int | None

    @staticmethod
    def builder() -> FileCompactStrategy.Builder:
        """Begin a strategy; it needs a size or a number of checkpoints."""
        return FileCompactStrategy.Builder()

    def is_enough(self, size: int, checkpoints: int) -> bool:
        """Whether so many bytes, or so many checkpoints since the first of them, make a file."""
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
            """A file at the latest after so many checkpoints."""
            self._checkpoints = _positive("enable_compaction_on_checkpoint", num_checkpoints_before_compaction)
            return self

        def set_size_threshold(self, size_threshold: int) -> FileCompactStrategy.Builder:
            """A file as soon as there are so many bytes."""
            self._size = _positive("set_size_threshold", size_threshold)
            return self

        def set_num_compact_threads(self, num_compact_threads: int) -> FileCompactStrategy.Builder:
            """Accepted and without effect: files are put together by the subtasks that write them."""
            _positive("set_num_compact_threads", num_compact_threads)
            notice("FileCompactStrategy.set_num_compact_threads", "the subtasks that write files put them together")
            return self

        def build(self) -> FileCompactStrategy:
            """The strategy; ProgramError without any condition."""
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
        raise ProgramError(f"{method} takes a number above 0", where="FileCompactStrategy", found=str(number))
    return number


@dataclass(frozen=True)
class FileCompactor:
    """How files become one. ``delimiter`` None: they do not, each stays a file. Bulk formats put records together, and need
    none."""

    delimiter: bytes | None

    @staticmethod
    def concat_file_compactor(file_delimiter: bytes | None = None) -> FileCompactor:
        """One behind the other, with the delimiter between them."""
        return FileCompactor(file_delimiter or b"")

    @staticmethod
    def identical_file_compactor() -> FileCompactor:
        """Files stay as they are."""
        return FileCompactor(None)


@dataclass(frozen=True)
class Compaction:
    strategy: FileCompactStrategy
    delimiter: bytes

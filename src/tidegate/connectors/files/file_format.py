"""The contract of a file format: where a file may be divided, and how a part of it is read."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

from tidegate.base.errors import CorruptFileError
from tidegate.base.files import Files
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.files.paths import SOURCE
from tidegate.operators.contracts.batch import Batch


class FileFormat(ABC):
    """Read byte ranges of files. A record, or a block of records, belongs to the range it starts in.

    So each record is read once, wherever the planner divides the file. A range that is read again gives the same records.
    """

    least_cut: int = 1
    """Bytes of the smallest piece that is worth an opening of the file."""

    @abstractmethod
    def can_cut(self, path: str) -> bool:
        """Return whether a reader can start anywhere in the file."""

    @abstractmethod
    def read(self, path: str, size: int, start: int, end: int) -> Iterator[Sequence[Any] | Batch]:
        """Yield the records that **start** in ``[start, end)``, in batches: lists of records, or a ``Batch`` each.

        ``size`` is the size of the file when it was planned. Bytes that were appended later are not read.
        """

    def produced_type(self) -> TypeInformation | None:
        """Return the type of the records. None: the format does not know it."""
        return None


class BulkFormat(FileFormat):
    """A format of whole blocks (``FileSource.for_bulk_file_format``)."""


def unchanged(path: str, size: int) -> Files:
    """Return the file, after a check that it is not shorter than the planner saw it."""
    files = Files(path, SOURCE)
    found = files.size_if_exists("")
    if found is None or found < size:
        raise CorruptFileError(
            "A file has changed since the source first saw it",
            where=f"file {path}",
            found="no such file" if found is None else f"{found} bytes, expected {size}",
            cure="restore the file, or give the source another uid to start anew; write new data to new files",
        )
    return files

"""What a file source needs to know of a format: where a file may be cut, and how a part of it is read."""

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
    """Positions are bytes. A record, or a block of records, belongs to the range it starts in: wherever the planner cuts, each is
    read once, and a range that is read again gives the same."""

    least_cut: int = 1
    """Bytes of a piece below which reading it is not worth an opening of the file."""

    @abstractmethod
    def can_cut(self, path: str) -> bool:
        """Whether a reader can start anywhere in the file."""

    @abstractmethod
    def read(self, path: str, size: int, start: int, end: int) -> Iterator[Sequence[Any] | Batch]:
        """What **starts** in ``[start, end)``, in batches: lists of records, or a ``Batch`` each. ``size`` is the file's size when
        it was planned: what was appended since is not read."""

    def produced_type(self) -> TypeInformation | None:
        """The type of the records, if the format knows it."""
        return None


class BulkFormat(FileFormat):
    """A format of whole blocks (``FileSource.for_bulk_file_format``)."""


def unchanged(path: str, size: int) -> Files:
    """The file, if it still is what the planner saw."""
    files = Files(path, SOURCE)
    found = files.size_if_exists("")
    if found is None or found < size:
        raise CorruptFileError(
            "a file must stay as it is once the source has seen it",
            where=f"file {path}",
            found="it is gone" if found is None else f"{found} bytes, expected {size}",
            cure="put the file back, or start the source anew with another uid; new data belongs into a new file",
        )
    return files

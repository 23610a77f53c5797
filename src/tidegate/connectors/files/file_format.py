"""The contract of a file format, lines of text in a byte range, and the paths of data files.

A format says where a file may be divided, and how a part of it is read. Lines end with LF, CR LF or CR, as in Java's
readers, or with the file.

Paths are joined and resolved here, as users write them and as connectors store them. ``base/files.py`` holds the files
themselves.
"""

from __future__ import annotations

import bz2
import codecs
import gzip
import io
import lzma
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, BinaryIO, ClassVar, cast

from tidegate.base.errors import ConfigurationError, CorruptFileError
from tidegate.base.files import FILE_SINK, Files
from tidegate.common.typeinfo import TypeInformation
from tidegate.connectors.values.ranges import BATCH_SIZE
from tidegate.operators.contracts.batch import Batch

COPY_BUFFER = 1 << 20
SINK, SOURCE = FILE_SINK, "the directory of a file source"
"""Owners of files, for messages."""


def join(directory: str, name: str) -> str:
    return f"{directory.rstrip('/')}/{name}" if name else directory


def full_path(path: str) -> str:
    """Return a path that means the same in every process: an absolute local path, or the URL itself."""
    if path.startswith("file:"):
        path = "/" + path.removeprefix("file:").lstrip("/")
    return path if "://" in path else os.path.abspath(path)


def same_content(files: Files, one: str, other: str) -> bool:
    with files.open_stream(one) as left, files.open_stream(other) as right:
        while block := left.read(COPY_BUFFER):
            if block != right.read(COPY_BUFFER):
                return False
        return not right.read(1)


class FileFormat(ABC):
    """Read byte ranges of files. A record, or a block of records, belongs to the range it starts in.

    So each record is read once, wherever the planner divides the file. A range that is read again gives the same records.
    """

    least_cut: int = 1
    """Bytes of the smallest piece that is worth an opening of the file."""

    @abstractmethod
    def can_cut(self, path: str, /) -> bool:
        """Return whether a reader can start anywhere in the file."""

    @abstractmethod
    def read(self, path: str, size: int, start: int, end: int, /) -> Iterator[Sequence[Any] | Batch]:
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


BLOCK = 1 << 20
_PROBE = 1 << 16
_DECOMPRESSORS: dict[str, Any] = {
    ".gz": gzip.open,
    ".gzip": gzip.open,
    ".bz2": bz2.open,
    ".xz": lzma.open,
}


class StreamFormat(FileFormat):
    """Read lines of text. Formats made of lines extend it."""

    errors: ClassVar[str] = "strict"
    """What becomes of bytes that are not of the charset: a name of Python's. A format that parses bytes keeps them, and finds
    their line."""

    def __init__(self, charset: str) -> None:
        self.charset = charset

    @staticmethod
    def text_line_format(charset_name: str = "UTF-8") -> StreamFormat:
        """Read one record per line, without the line end."""
        try:
            codecs.lookup(charset_name)
        except LookupError:
            raise ConfigurationError(
                "Python does not know the charset of a text format",
                where="StreamFormat.text_line_format",
                found=repr(charset_name),
                cure="use a name such as UTF-8, ISO-8859-1 or UTF-16",
            ) from None
        return StreamFormat(charset_name)

    def can_cut(self, path: str) -> bool:
        """Return whether a reader can start anywhere in the file: not if it is compressed, or if a line end is several bytes."""
        return "\n".encode(self.charset) == b"\n" and _decompressor(path) is None

    def read(self, path: str, size: int, start: int, end: int) -> Iterator[list[Any] | Batch]:
        yield from self.lines(path, size, start, end)

    def lines(self, path: str, size: int, start: int, end: int) -> Iterator[list[str]]:
        """Yield the lines that **start** in ``[start, end)``, in batches.

        ``size`` is the size of the file when it was planned. Bytes that were appended later are not read, so a replay gives the
        same lines.
        """
        if self.can_cut(path):
            for position, data in self.blocks(path, size, start, end):
                yield from _batches(text_lines(data, path, position, self.charset, self.errors))
            return
        with unchanged(path, size).open_stream("") as stream:
            yield from _read_whole(stream, path, self.charset, self.errors)

    def blocks(self, path: str, size: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
        """Yield the lines of a range as bytes, many together, with the position of the first. Only if ``can_cut``."""
        with unchanged(path, size).open_stream("") as stream:
            yield from _read_range(stream, path, size, start, end)


def _read_range(stream: BinaryIO, path: str, size: int, start: int, end: int) -> Iterator[tuple[int, bytes]]:
    position, stop = line_start(stream, start, size), line_start(stream, end, size)
    stream.seek(position)
    pieces: list[bytes] = []
    at = position
    while at < stop:
        block = stream.read(min(BLOCK, stop - at))
        if not block:
            raise CorruptFileError(
                "A file is shorter than its planned size",
                where=f"file {path}",
                found=f"{at} of {stop} bytes",
                cure="restore the file",
            )
        at += len(block)
        whole = len(block) if at == stop else block.rfind(b"\n") + 1
        if whole == 0:  # a line longer than a block
            pieces.append(block)
            continue
        data = b"".join([*pieces, block[:whole]])
        yield position, data
        position += len(data)
        pieces = [block[whole:]] if whole < len(block) else []


def line_start(stream: BinaryIO, position: int, size: int) -> int:
    """Return the first start of a line at or after ``position``, or ``size`` if there is none."""
    if position == 0 or position >= size:
        return min(position, size)
    at = position - 1
    stream.seek(at)
    while at < size:
        block = stream.read(min(_PROBE, size - at))
        if not block:
            break
        ends = [i for i in (block.find(b"\n"), block.find(b"\r")) if i >= 0]
        if ends:
            first = min(ends)
            if block[first : first + 1] == b"\r":
                stream.seek(at + first + 1)
                return at + first + (2 if stream.read(1) == b"\n" else 1)
            return at + first + 1
        at += len(block)
    return size


def text_lines(data: bytes, path: str, offset: int, charset: str, errors: str = "strict") -> list[str]:
    normal = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n") if b"\r" in data else data
    try:
        lines = normal.decode(charset, errors).split("\n")
    except UnicodeDecodeError:
        raise _undecodable(data, path, offset, charset) from None
    if not lines[-1]:
        lines.pop()  # the empty text after the last line end
    return lines


def lines_before(path: str, position: int) -> int:
    """Count the lines of a file before a position, for the message about a line that does not fit."""
    count, last = 0, b""
    with Files(path, SOURCE).open_stream("") as stream:
        while position > 0 and (block := stream.read(min(BLOCK, position))):
            position -= len(block)
            split = last == b"\r" and block[:1] == b"\n"  # one line end in two blocks
            count += block.count(b"\n") + block.count(b"\r") - block.count(b"\r\n") - split
            last = block[-1:]
    return count


def _undecodable(data: bytes, path: str, offset: int, charset: str) -> CorruptFileError:
    for line in data.splitlines(keepends=True):
        try:
            line.decode(charset)
        except UnicodeDecodeError as error:
            return _decode_error(path, charset, f"byte {offset + error.start}: {error.reason}, in line {line!r:.80}")
        offset += len(line)
    return _decode_error(path, charset, f"near byte {offset}")


def _decode_error(path: str, charset: str, found: str) -> CorruptFileError:
    return CorruptFileError(
        f"A line is not valid {charset}", where=f"file {path}", found=found, cure="pass the charset of the file"
    )


def _batches(lines: list[str]) -> Iterator[list[str]]:
    for start in range(0, len(lines), BATCH_SIZE):
        yield lines[start : start + BATCH_SIZE]


def _read_whole(stream: BinaryIO, path: str, charset: str, errors: str) -> Iterator[list[str]]:
    text = io.TextIOWrapper(decompressed(stream, path), encoding=charset, errors=errors, newline=None)
    try:
        while batch := [line.removesuffix("\n") for line in islice(text, BATCH_SIZE)]:
            yield batch
    except UnicodeDecodeError as error:
        raise _decode_error(path, charset, str(error)) from None
    except (OSError, EOFError, lzma.LZMAError) as error:
        raise CorruptFileError(
            "A compressed file is truncated or invalid",
            where=f"file {path}",
            found=str(error),
            cure="write the file again, or remove it from the source's directory",
        ) from error


def decompressed(stream: BinaryIO, path: str) -> BinaryIO:
    """Return the content of a file. The name decides whether it is compressed."""
    decompress = _decompressor(path)
    return cast("BinaryIO", decompress(stream, "rb")) if decompress else stream


def _decompressor(path: str) -> Any:
    return next((opener for suffix, opener in _DECOMPRESSORS.items() if path.endswith(suffix)), None)

"""Parts of a bulk format: batches packed one by one in fragments, put together as one file when the part is finished.

A Parquet file ends with its index, so no round can continue what another has closed. The fragments of a part hold framed batches
instead, in whatever form the format packs them; frames behind frames are frames, so fragments are merged and taken over like
those of a row format. The file itself is written once, hidden, by the round that finishes the part.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO

from tidegate.base.errors import CorruptFileError
from tidegate.base.files import Files, FileWriter
from tidegate.common.serialization import BulkWriterFactory
from tidegate.connectors.files.parts import Fragment, check_fragment
from tidegate.connectors.files.paths import SINK

_HEAD = 8


def framed(batch: bytes) -> bytes:
    return len(batch).to_bytes(_HEAD, "big") + batch


def assemble(directory: str, fragments: list[Fragment], name: str, factory: BulkWriterFactory) -> Fragment:
    """The file of a part, durable; the fragments stay, an older checkpoint may need them."""
    files = Files(directory, SINK)
    for fragment in fragments:
        check_fragment(directory, fragment)
    with files.create_stream(name, aside=False) as stream:
        factory.write(_batches(files, fragments), Target(stream))
        size = stream.size
        stream.close()
    return Fragment(name, size, named=False)


def _batches(files: Files, fragments: list[Fragment]) -> Iterator[bytes]:
    for fragment in fragments:
        with files.open_stream(fragment.name) as source:
            while head := source.read(_HEAD):
                yield _frame(source, int.from_bytes(head, "big"), files.location(fragment.name))


def _frame(source: BinaryIO, size: int, location: str) -> bytes:
    batch = source.read(size)
    if len(batch) != size:
        raise CorruptFileError(
            "an unfinished file of a bulk format holds whole batches",
            where=f"file {location}",
            found=f"{len(batch)} bytes of a batch of {size}",
            cure="restore an older checkpoint",
        )
    return batch


class Target:
    """A hidden file as the libraries of formats want it. They close what they write to: here that means nothing."""

    closed = False

    def __init__(self, stream: FileWriter) -> None:
        self._stream = stream

    def write(self, data: Any) -> int:
        view = memoryview(data)
        self._stream.write(bytes(view))
        return view.nbytes

    def tell(self) -> int:
        return self._stream.size

    def flush(self) -> None: ...

    def close(self) -> None: ...

    def readable(self) -> bool:
        return False

    def writable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return False

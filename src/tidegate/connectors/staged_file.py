"""The file in which a writer keeps what it was given, on checkpoint storage, until a committer or the next writer wants it."""

from __future__ import annotations

import re

from tidegate.base.files import Files, FileWriter
from tidegate.operators.contracts.sink import WriterContext


class StagedFile:
    """Of one attempt: no two share a name. It is there from the first ``write`` on. ``aside``: see ``Files.create_stream``."""

    def __init__(self, context: WriterContext, directory: str, *, aside: bool = False) -> None:
        attempt = re.sub(r"[^A-Za-z0-9_.-]", "_", context.attempt)
        self._files, self._aside = Files(context.staging), aside
        self._name = f"{directory}/{context.round:010d}-{context.subtask}-{attempt}"
        self._stream: FileWriter | None = None

    @property
    def has_content(self) -> bool:
        """Something was written, and is not finished yet."""
        return self._stream is not None

    def write(self, *parts: bytes) -> None:
        if self._stream is None:
            self._stream = self._files.create_stream(self._name, aside=self._aside)
        for part in parts:
            self._stream.write(part)

    def finish(self) -> tuple[str, int, str]:
        """Durable; returns its address (a full one: another job may restore the checkpoint), size and hash."""
        assert self._stream is not None
        stream, self._stream = self._stream, None
        handle = stream.close()
        return self._files.location(self._name), handle.size, handle.hash

    def drop(self) -> None:
        """Nobody will want it, finished or not."""
        if self._stream is None:
            self._files.delete(self._name)
        self.close()

    def close(self) -> None:
        """What is not finished goes."""
        if self._stream is not None:
            self._stream.discard()
            self._stream = None

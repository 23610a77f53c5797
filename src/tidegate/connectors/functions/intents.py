"""Intent files: a trace of every transaction outside, left before anything is written to it."""

from __future__ import annotations

import re

from tidegate.base.files import Files
from tidegate.operators.contracts.sink import WriterContext

_DIRECTORY = "intents"
_UNPUBLISHED, _DECIDED = ".tmp", ".decided"


class Intents:
    """One small file per open transaction below the sink's staging directory, named by round, subtask and attempt,
    so that no two attempts share one. It is there from right after the begin until the transaction is committed or
    aborted.

    Where no checkpoint says what is to be committed (at-least-once), a second file beside it does, from right before the commit:
    whoever finds both commits again, since to abort what is committed is nobody's right. It goes last, so one that is found
    alone says nothing any more.
    """

    def __init__(self, staging: str) -> None:
        self._files = Files(staging)

    def note(self, context: WriterContext, handle: bytes) -> str:
        """Keep the handle durably; returns the intent's address."""
        attempt = re.sub(r"[^A-Za-z0-9_.-]", "_", context.attempt)
        name = f"{_DIRECTORY}/{context.round:010d}-{context.subtask}-{attempt}"
        self._files.publish(name, handle)
        return self._files.location(name)

    def open(self) -> list[str]:
        """Addresses of all intents, oldest round first."""
        names = [name for name in self._files.list(_DIRECTORY) if not name.endswith((_UNPUBLISHED, _DECIDED))]
        return [self._files.location(name) for name in names]

    def unpublished(self) -> list[str]:
        """What a crash in ``note`` or ``close`` has left: files that never became intents, or are of none any more."""
        names = set(self._files.list(_DIRECTORY))
        alone = [n for n in names if n.endswith(_DECIDED) and n.removesuffix(_DECIDED) not in names]
        return sorted([*alone, *(name for name in names if name.endswith(_UNPUBLISHED))])

    def remove(self, names: list[str]) -> None:
        for name in names:
            self._files.delete(name)

    @staticmethod
    def handle(address: str) -> bytes | None:
        """The handle, or None if the intent has been closed meanwhile."""
        files, name = _at(address)
        return files.read_if_exists(name)

    @staticmethod
    def decide(address: str, handle: bytes) -> None:
        """It is about to be committed. ``handle``: as the commit needs it. Once more is fine."""
        files, name = _at(address)
        files.replace(name + _DECIDED, handle)

    @staticmethod
    def decided(address: str) -> bytes | None:
        """The handle to commit with, if that was decided."""
        files, name = _at(address)
        return files.read_if_exists(name + _DECIDED)

    @staticmethod
    def close_decided(address: str) -> None:
        """As ``close``, of one that was decided."""
        Intents.close(address)
        files, name = _at(address)
        files.delete(name + _DECIDED)

    @staticmethod
    def close(address: str) -> None:
        """The transaction is over. Addresses are full ones: after a restore they may lie below another job's
        directory.
        """
        files, name = _at(address)
        files.delete(name)


def _at(address: str) -> tuple[Files, str]:
    directory, _, name = address.rpartition("/")
    return Files(directory), name

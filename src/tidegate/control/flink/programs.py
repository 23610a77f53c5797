"""Programs that users upload, as ``/jars`` shows and runs them, and the form in which clients send them."""

from __future__ import annotations

from collections.abc import Sequence
from email.parser import BytesParser
from email.policy import HTTP
from typing import Protocol

import msgspec

from tidegate.control.flink.requests import ApiError, Call, Upload

SENTENCE = (
    "This server takes no programs. Start one that does: tidegate web --allow-submit. "
    "Or start the program by tidegate run -d FILE."
)


class Program(msgspec.Struct, frozen=True, kw_only=True):
    """An uploaded program, a ``.py`` or ``.zip`` file. ``entries``: names that ``entry`` of a ``RunRequest`` may have."""

    id: str
    name: str
    uploaded_ms: int
    entries: tuple[str, ...] = ()


class RunRequest(msgspec.Struct, frozen=True, kw_only=True):
    """How to run a program. None: what the program and the server's configuration say."""

    entry: str | None = None
    parallelism: int | None = None
    arguments: tuple[str, ...] = ()
    savepoint: str | None = None
    allow_non_restored_state: bool = False
    claim_mode: str | None = None
    job_id: str | None = None
    configuration: dict[str, str] = {}


class Programs(Protocol):
    """The programs of a server that takes them. Methods raise TidegateError for what is refused."""

    @property
    def largest_bytes(self) -> int: ...

    def list(self) -> Sequence[Program]: ...

    def add(self, name: str, content: bytes) -> Program: ...

    def remove(self, id: str) -> None: ...

    def run(self, id: str, request: RunRequest) -> str:
        """Start a driver, and return the id of its job."""


def uploaded(call: Call) -> Upload:
    """Return the file of a multipart form: the part ``jarfile``, else the first one with a file name."""
    if not call.content_type.lower().startswith("multipart/form-data"):
        raise ApiError(400, "A program is uploaded as multipart/form-data, in a part with a file name.")
    head = b"Content-Type: " + call.content_type.encode("latin-1", "replace") + b"\r\n\r\n"
    form = BytesParser(policy=HTTP).parsebytes(head + call.content)
    parts = [part for part in form.iter_parts() if part.get_filename()] if form.is_multipart() else []
    if len(parts) != 1:
        raise ApiError(400, f"An upload has exactly one file. Found: {len(parts)}.")
    content = parts[0].get_payload(decode=True)
    return Upload(str(parts[0].get_filename()), content if isinstance(content, bytes) else b"")

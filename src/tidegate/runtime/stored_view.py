"""The view of a job on checkpoint storage."""

from __future__ import annotations

from typing import Any

import msgspec

from tidegate.base.files import Files
from tidegate.checkpoint.envelope import seal, unseal
from tidegate.runtime.view import JobView, Note

MAGIC, VERSION, PATH = "tidegate-view", 1, "view.json"


class StoredView(msgspec.Struct, frozen=True):
    view: JobView
    as_of_ms: int
    stories: dict[str, list[Note]] = {}


def write_view(files: Files, view: JobView, now_ms: int) -> None:
    files.replace(PATH, seal(MAGIC, VERSION, StoredView(view, now_ms)))


def read_view(files: Files) -> StoredView | None:
    content = files.read_if_exists(PATH)
    if content is None:
        return None

    def read(body: bytes) -> Any:
        return msgspec.json.decode(body, type=StoredView)

    return unseal(files.location(PATH), content, MAGIC, {1: read})  # type: ignore[no-any-return]

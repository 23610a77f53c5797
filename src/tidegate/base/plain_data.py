"""Plain data, which every version can read: positions, committables and states of connectors consist of it."""

from __future__ import annotations

from typing import Any


def is_encodable(text: str) -> bool:
    """Return whether a text can be encoded: lone surrogates cannot."""
    try:
        text.isascii() or text.encode()
    except UnicodeEncodeError:
        return False
    return True


def find_other(data: Any, *, allow_bytes: bool) -> Any | None:
    """Return the first part of ``data`` that is not plain; None if all parts are."""
    if data is None or type(data) in (bool, float) or (allow_bytes and type(data) is bytes):
        return None
    if type(data) is str:
        return None if is_encodable(data) else data
    if type(data) is int:
        return None if -(1 << 63) <= data < 1 << 64 else data
    if type(data) is list:
        items: list[Any] = data
    elif type(data) is dict:
        items = [*data.keys(), *data.values()]
    else:
        return data
    return next((other for item in items if (other := find_other(item, allow_bytes=allow_bytes)) is not None), None)

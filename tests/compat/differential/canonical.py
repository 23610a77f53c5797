"""Records as JSON that keeps apart what differs: tuples and lists, ints and floats, rows with and without names."""

from __future__ import annotations

import datetime
import decimal
import json
from typing import Any


def canonical(value: Any) -> Any:
    """JSON data, equal exactly if two records are alike in type and content, whatever package their classes are of."""
    kind = type(value)
    if value is None or kind in (bool, int, float, str):
        return value
    if kind is list:
        return [canonical(item) for item in value]
    if kind is dict:
        items = [[canonical(key), canonical(item)] for key, item in value.items()]
        return {"dict": sorted(items, key=json.dumps)}
    if kind is tuple:
        return {"tuple": [canonical(item) for item in value]}
    if kind is bytes:
        return {"bytes": value.hex()}
    if kind.__name__ == "Row":
        names = getattr(value, "_fields", None)
        fields = [canonical(item) for item in value]
        return {"row": fields, "names": None if names is None else list(names), "kind": str(value.get_row_kind())}
    if isinstance(value, datetime.date | datetime.time | decimal.Decimal):
        return {kind.__name__: str(value)}
    return {kind.__name__: repr(value)}

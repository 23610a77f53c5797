"""Flink's API in the description of the endpoint. ``scripts/gen_flink_api.py`` makes the file that it is read from."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

import msgspec

_WAYS = ("get", "put", "post", "delete", "patch")


@functools.cache
def api() -> dict[str, Any]:
    """Return ``paths`` and ``schemas``, as Flink names them: without a prefix."""
    found: dict[str, Any] = msgspec.json.decode(files("tidegate.control.flink").joinpath("api.json").read_bytes())
    return found


def described() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the paths below ``/v1`` and their schemas, for an OpenAPI description. Names of schemas begin with ``Flink``."""
    text = msgspec.json.encode(api()).replace(b"#/components/schemas/", b"#/components/schemas/Flink.")
    renamed = msgspec.json.decode(text)
    error = {
        "description": "Why not.",
        "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Flink.ErrorResponseBody"}}},
    }
    paths = {}
    for path, methods in renamed["paths"].items():
        for way in _WAYS:
            if way in methods:
                methods[way]["responses"]["default"] = error
                _describe_answers(methods[way])
        paths[f"/v1{path}"] = methods
    return paths, {f"Flink.{name}": schema for name, schema in renamed["schemas"].items()}


def _describe_answers(operation: dict[str, Any]) -> None:
    for answer in operation["responses"].values():
        answer.setdefault("description", "Done.")

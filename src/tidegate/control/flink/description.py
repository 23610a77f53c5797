"""Flink's API in the description of the endpoint. ``scripts/gen_flink_api.py`` makes the file that it is read from."""

from __future__ import annotations

import functools
from importlib.resources import files
from typing import Any

import msgspec

_WAYS = ("get", "put", "post", "delete", "patch")

_EXECUTOR = "/v1/taskmanagers/{taskmanagerid}"
_TEXTS = (
    "/metrics",
    *(f"/v1/jobmanager/{name}" for name in ("log", "stdout", "logs/{filename}")),
    *(f"{_EXECUTOR}/{name}" for name in ("log", "stdout", "logs/{filename}")),
)
"""Paths that Flink's description leaves out, and ours: their answers are texts."""


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
    for path in _TEXTS:
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        parameters = [{"name": name, "in": "path", "required": True, "schema": {"type": "string"}} for name in names]
        answer = {"description": "Text.", "content": {"text/plain": {"schema": {"type": "string"}}}}
        paths[path] = {"get": {"parameters": parameters, "responses": {"200": answer, "default": error}}}
    paths["/v1/jars/{jarid}/plan"]["get"] = paths["/v1/jars/{jarid}/plan"]["post"] | {"requestBody": {"content": {}}}
    return paths, {f"Flink.{name}": schema for name, schema in renamed["schemas"].items()}


def _describe_answers(operation: dict[str, Any]) -> None:
    for answer in operation["responses"].values():
        answer.setdefault("description", "Done.")

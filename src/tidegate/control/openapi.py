"""The description of the endpoint (OpenAPI 3.1), made from the types of ``messages.py``."""

from __future__ import annotations

import functools
from typing import Any

import msgspec

import tidegate
from tidegate.control import details as d
from tidegate.control import messages as m
from tidegate.runtime.prometheus import CONTENT_TYPE

_JOB = {"name": "job_id", "in": "path", "required": True, "schema": {"type": "string"}}
_OPERATION = {"name": "operation", "in": "path", "required": True, "schema": {"type": "string"}}
_WAIT = {
    "name": "wait",
    "in": "query",
    "description": "Answer when it has ended, or after so many seconds.",
    "schema": {"type": "number", "minimum": 0, "maximum": 25},
}
_ANSWERS = (list[d.JobSummary], d.JobDetails, d.Checkpoints, list[m.Operation], m.Operation, m.Problem)
_REQUESTS = (m.SavepointRequest, m.StopRequest, m.CancelRequest)


@functools.cache
def description() -> dict[str, Any]:
    types = (*_ANSWERS, *_REQUESTS, dict[str, Any])
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    of: dict[Any, dict[str, Any]] = {str(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    problem = {"description": "Why not.", "content": {"application/json": {"schema": of[str(m.Problem)]}}}

    def answer(kind: Any, status: str = "200") -> dict[str, Any]:
        good = {"description": "Done.", "content": {"application/json": {"schema": of[str(kind)]}}}
        return {"responses": {status: good, "default": problem}}

    def begins(summary: str, body: Any = None) -> dict[str, Any]:
        asked: dict[str, Any] = {}
        if body is not None:
            asked = {"requestBody": {"content": {"application/json": {"schema": of[str(body)]}}}}
        return {"summary": summary, **asked, **answer(m.Operation, "202")}

    def on_job(**methods: Any) -> dict[str, Any]:
        return {"parameters": [_JOB], **methods}

    one = "/v1/jobs/{job_id}"
    metrics = {"description": "Text of Prometheus.", "content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}
    any_object = {"description": "This page.", "content": {"application/json": {"schema": {"type": "object"}}}}
    paths = {
        "/openapi.json": {"get": {"summary": "This description", "responses": {"200": any_object, "default": problem}}},
        "/v1/jobs": {"get": {"summary": "Jobs of the driver", **answer(list[d.JobSummary])}},
        one: on_job(get={"summary": "A job", **answer(d.JobDetails)}),
        f"{one}/checkpoints": on_job(
            get={"summary": "Its checkpoints", **answer(d.Checkpoints)},
            post=begins("Take a checkpoint now"),
        ),
        f"{one}/savepoints": on_job(post=begins("Take a savepoint", m.SavepointRequest)),
        f"{one}/stop": on_job(post=begins("Stop with a savepoint", m.StopRequest)),
        f"{one}/cancel": on_job(post=begins("Cancel, with a savepoint or without", m.CancelRequest)),
        f"{one}/operations": on_job(get={"summary": "What it was told", **answer(list[m.Operation])}),
        f"{one}/operations/{{operation}}": {
            "parameters": [_JOB, _OPERATION],
            "get": {"summary": "What has become of it", "parameters": [_WAIT], **answer(m.Operation)},
        },
        f"{one}/metrics": on_job(
            get={"summary": "Its figures", "responses": {"200": metrics, "default": problem}},
        ),
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "A driver of Tidegate", "version": tidegate.__version__},
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }

"""Messages between drivers and the command line, as JSON. The OpenAPI description is made from these types and ``jobs.py``."""

from __future__ import annotations

from enum import Enum
from typing import Any

import msgspec


class Code(Enum):
    """Why a request failed. ``docs/operation.md`` has the exit code of each."""

    UNAUTHORIZED = "unauthorized"
    BAD_REQUEST = "bad-request"
    UNKNOWN = "unknown"
    ENDED = "ended"
    REFUSED = "refused"
    NO_TARGET = "no-target"
    FAILED = "failed"


class Problem(msgspec.Struct, frozen=True):
    code: Code
    message: str


def body_of(path: str, problem: Problem) -> dict[str, Any]:
    """Return the body of an answer that no handler has given: in the shape of Flink's API, of ours, or of both where the path does
    not say which API the client means. Flink's Java client reads no body with more fields than it knows."""
    errors = {"errors": [problem.message]}
    return errors if path.startswith("/v1/") else {"code": problem.code, "message": problem.message, **errors}


class OperationStatus(Enum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """A command that the job carries out. ``result``: the id of a checkpoint, the path of a savepoint, how the job ended."""

    id: str
    kind: str
    status: OperationStatus
    started_ms: int
    ended_ms: int | None = None
    result: str | None = None
    problem: Problem | None = None


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``target`` is a directory, absolute or with a scheme. None: the configured one."""

    target: str | None = None


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``drain``: event time advances to its end first, so windows and timers fire."""

    target: str | None = None
    drain: bool = False


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``savepoint``: take a savepoint first."""

    target: str | None = None
    savepoint: bool = False

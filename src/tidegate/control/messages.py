"""What drivers and the command line say to each other, as JSON; the OpenAPI description is made from these types. What jobs look
like is in ``details.py``."""

from __future__ import annotations

from enum import Enum

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


class OperationStatus(Enum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"


class Operation(msgspec.Struct, frozen=True, kw_only=True):
    """Something the job was told to do. ``result``: the id of a checkpoint, the path of a savepoint, how the job ended."""

    id: str
    kind: str
    status: OperationStatus
    started_ms: int
    ended_ms: int | None = None
    result: str | None = None
    problem: Problem | None = None


class SavepointRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``target``: a directory, absolute or with a scheme; None: the configured one."""

    target: str | None = None


class StopRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``drain``: all event time passes first, so windows and timers fire."""

    target: str | None = None
    drain: bool = False


class CancelRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """``savepoint``: take one first."""

    target: str | None = None
    savepoint: bool = False

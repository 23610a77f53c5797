"""What a handler of Flink's API gets and gives: checked parameters and bodies, answers, and errors in Flink's shape."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from tidegate.base.errors import ConfigurationError, RefusedError, RestoreError, StorageError, TidegateError

T = TypeVar("T")
_HEX = re.compile(r"[0-9a-fA-F]{32}")
_JOB = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
_WHOLE = re.compile(r"[+-]?[0-9]{1,19}")
_YES = {"true": True, "false": False}


class ApiError(Exception):
    """Ends a request with a status and a sentence: ``{"errors": [sentence]}``."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence


@dataclass(frozen=True)
class Answer:
    """An answer with a status of its own. Other values are the body of a 200."""

    body: Any = field(default_factory=dict)
    status: int = 200


@dataclass(frozen=True)
class TextFile:
    """The answer is this file, as far as it is written now."""

    path: Path


@dataclass(frozen=True)
class Upload:
    """A file that a client sends."""

    name: str
    content: bytes


@dataclass(frozen=True)
class Call:
    """One request. ``query`` has every value of a parameter, in their order."""

    path: dict[str, str]
    query: dict[str, list[str]] = field(default_factory=dict)
    content: bytes = b""
    content_type: str = ""

    def job(self) -> str:
        """Return the id of the job, in one of its two forms."""
        text = self.path["jobid"]
        if _JOB.fullmatch(text) is None:
            raise _malformed("jobid", text, "32 hexadecimal digits, or a tidegate.job-id")
        return text

    def hex(self, name: str) -> str:
        text = self.path[name]
        if _HEX.fullmatch(text) is None:
            raise _malformed(name, text, "32 hexadecimal digits")
        return text.lower()

    def number(self, name: str, bits: int = 32) -> int:
        return _number(name, self.path[name], bits)

    def asked(self, name: str) -> str | None:
        """Return the parameter of the query, the last one of several."""
        values = self.query.get(name)
        return values[-1] if values else None

    def listed(self, name: str) -> list[str] | None:
        """Return the values of a parameter with commas; None: the parameter is not given."""
        values = self.query.get(name)
        return None if values is None else [part for value in values for part in value.split(",") if part]

    def asked_number(self, name: str, least: int | None = None) -> int | None:
        text = self.asked(name)
        value = None if text is None or text == "" else _number(name, text, 32)
        if value is not None and least is not None and value < least:
            raise _malformed(name, str(value), f"a number of at least {least}")
        return value

    def asked_flag(self, name: str) -> bool:
        text = self.asked(name) or "false"
        if text.lower() not in _YES:
            raise _malformed(name, text, "true or false")
        return _YES[text.lower()]

    def body(self, kind: type[T]) -> T:
        """Read the body. An empty one counts as ``{}``."""
        try:
            return msgspec.json.decode(self.content or b"{}", type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ApiError(400, f"The request body is invalid: {error}") from None


def _number(name: str, text: str, bits: int) -> int:
    value = int(text) if _WHOLE.fullmatch(text) and text.isascii() else None
    if value is None or not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise _malformed(name, text, f"a whole number of {bits} bits")
    return value


def _malformed(name: str, text: str, expected: str) -> ApiError:
    return ApiError(400, f"The parameter {name} is malformed. Found: {text[:100]!r}. Expected: {expected}.")


def status_of(error: TidegateError) -> int:
    """Return the status for an error that a command raises before the job gets the command."""
    if isinstance(error, ConfigurationError):
        return 400
    if isinstance(error, RefusedError):
        return 409
    if isinstance(error, RestoreError):
        return 404
    return 503 if isinstance(error, StorageError) else 500


# -- bodies ----------------------------------------------------------------------------------------------------------------


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    pass


class CheckpointBody(_Body, frozen=True, rename="camel"):
    checkpoint_type: str | None = None
    trigger_id: str | None = None


_SAVEPOINT_NAMES = {
    "target": "target-directory",
    "cancel": "cancel-job",
    "format_type": "formatType",
    "trigger_id": "triggerId",
}


class SavepointBody(_Body, frozen=True, rename=_SAVEPOINT_NAMES):
    target: str | None = None
    cancel: bool = False
    format_type: str | None = None
    trigger_id: str | None = None


class StopBody(_Body, frozen=True, rename="camel"):
    target_directory: str | None = None
    drain: bool | None = None
    format_type: str | None = None
    trigger_id: str | None = None


class DisposalBody(_Body, frozen=True, rename={"path": "savepoint-path"}):
    path: str


class RunBody(_Body, frozen=True, rename="camel"):
    """The bodies of ``/jars/{jarid}/run`` and ``run-application`` together."""

    allow_non_restored_state: bool | None = None
    application_id: str | None = None
    claim_mode: str | None = None
    restore_mode: str | None = None
    entry_class: str | None = None
    flink_configuration: dict[str, str] | None = None
    job_id: str | None = None
    parallelism: int | None = None
    program_args_list: list[str] | None = None
    savepoint_path: str | None = None

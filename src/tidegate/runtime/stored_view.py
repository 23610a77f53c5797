"""The view of a job on checkpoint storage (``view.json``): a job that has ended or died is shown from it as a living one.

The file is written in the checkpoint lane while the job runs, at each failure and at the end. Nothing depends on it: a write that
fails is a line in the log. The full figures of subtasks are those of the latest checkpoints.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace
from operator import attrgetter
from typing import Any, get_type_hints

import msgspec

from tidegate.base import secrets
from tidegate.base.clock import FOREVER, Clock
from tidegate.base.files import Files
from tidegate.checkpoint.envelope import seal_bytes, unseal
from tidegate.checkpoint.lease import Lease
from tidegate.runtime import view as views
from tidegate.runtime.statistics import MetricView
from tidegate.runtime.view import CheckpointView, JobView, Note, SubtaskFigures

log = logging.getLogger(__name__)

MAGIC, VERSION, PATH = "tidegate-view", 1, "view.json"
EVERY_MS = 10_000
"""How often the view of a running job is written, at most."""
FIRST_MS = 1_000
"""When the view of an attempt is written first: most jobs that are shorter need one file less."""
_MOST_ROWS = 10_000
"""Figures of subtasks in all checkpoints together, the newest first: some 50 bytes each."""
_MOST_NOTES = 500


@dataclass(frozen=True)
class StoredView:
    """A view that was read. ``as_of_ms``: when (wall clock) it was written; ``token``: by the attempt with this lease. ``stories``:
    the latest notes, by kind and number: ``checkpoint 7``."""

    view: JobView
    as_of_ms: int
    stories: dict[str, list[Note]] = field(default_factory=dict)
    token: int = 0

    def story(self, kind: str, number: int) -> list[Note]:
        """Return the notes on one checkpoint, savepoint or round, oldest first, as far as stored."""
        return self.stories.get(f"{kind} {number}", [])


def _fields() -> list[tuple[str, Any, Any]]:
    """Return the fields of a view with their types and defaults. Metrics are stored as a list: their keys are no texts."""
    hints = get_type_hints(JobView, vars(views))
    found: list[tuple[str, Any, Any]] = []
    for each in dataclasses.fields(JobView):
        default: Any = each.default
        if each.default_factory is not dataclasses.MISSING:
            default = msgspec.field(default_factory=each.default_factory)
        elif default is dataclasses.MISSING:
            default = msgspec.field()
        if each.name != "metrics":
            found.append((each.name, hints[each.name], default))
    return found


_FIELDS = _fields()
_View = msgspec.defstruct("_View", _FIELDS, kw_only=True, omit_defaults=True)
_Row = tuple[int, int, float, float, float, int, int, int, int | None]
"""The fields of ``SubtaskFigures``."""
_row = attrgetter(*(each.name for each in dataclasses.fields(SubtaskFigures)))


class _Content(msgspec.Struct, kw_only=True):
    """The content of the file. ``subtasks``: of a checkpoint, by its id."""

    as_of_ms: int
    token: int
    view: _View  # type: ignore[valid-type]
    metrics: list[MetricView] = []
    subtasks: dict[int, list[_Row]] = {}
    notes: list[Note] = []


def write_view(files: Files, view: JobView, now_ms: int, *, notes: Iterable[Note] = (), token: int = 0) -> None:
    """Write the view, in one step and without secrets. ``token``: of the lease of the writing attempt, which has checked it."""
    shown = {name: getattr(view, name) for name, _, _ in _FIELDS}
    shown["checkpoints"] = tuple(replace(checkpoint, subtasks=()) for checkpoint in view.checkpoints)
    content = _Content(
        as_of_ms=now_ms,
        token=token,
        view=_View(**shown),
        metrics=[metric for metric in view.metrics.values() if _is_number(metric.value)],
        subtasks=_rows(view.checkpoints),
        notes=list(notes)[-_MOST_NOTES:],
    )
    data = msgspec.json.encode(content)
    if secrets.are_in(data):
        data = secrets.masked(data.decode()).encode()
    files.replace(PATH, seal_bytes(MAGIC, VERSION, data))


def read_view(files: Files) -> StoredView | None:
    """Read the view of a job's directory. None: there is none. Damage raises ``CorruptFileError``."""
    content = files.read_if_exists(PATH)
    return None if content is None else unseal(files.location(PATH), content, MAGIC, {1: _read_version_1})


def _read_version_1(body: bytes) -> StoredView:
    content = msgspec.json.decode(body, type=_Content)
    view = JobView(**{name: getattr(content.view, name) for name, _, _ in _FIELDS})
    checkpoints = tuple(
        replace(each, subtasks=tuple(SubtaskFigures(*row) for row in content.subtasks.get(each.checkpoint_id, ())))
        for each in view.checkpoints
    )
    metrics = {(each.operator, each.subtask, each.groups, each.name): each for each in content.metrics}
    stories: dict[str, list[Note]] = {}
    for note in content.notes:
        stories.setdefault(f"{note.kind} {note.number}", []).append(note)
    return StoredView(replace(view, checkpoints=checkpoints, metrics=metrics), content.as_of_ms, stories, content.token)


def _is_number(value: Any) -> bool:
    try:
        return isinstance(value, int | float) and math.isfinite(value)
    except OverflowError:  # a whole number beyond floating point
        return False


def _rows(checkpoints: Iterable[CheckpointView]) -> dict[int, list[_Row]]:
    room, kept = _MOST_ROWS, {}
    for checkpoint in reversed(list(checkpoints)):
        room -= len(checkpoint.subtasks)
        if room < 0:
            break
        if checkpoint.subtasks:
            kept[checkpoint.checkpoint_id] = list(map(_row, checkpoint.subtasks))
    return kept


class ViewKeeper:
    """Writes the view of one attempt. ``look`` and ``notes`` may be called from any thread."""

    def __init__(
        self,
        files: Files,
        lease: Lease,
        clock: Clock,
        look: Callable[[], JobView],
        notes: Callable[[], list[Note]],
    ) -> None:
        self._files, self._lease, self._clock, self._look, self._notes = files, lease, clock, look, notes
        self._next = clock.monotonic() * 1000 + FIRST_MS

    def take_due(self) -> bool:
        """Return whether the view should be written now. If so, the caller writes it: until then nothing is due."""
        due = self._clock.monotonic() * 1000 >= self._next
        self._next = FOREVER if due else self._next
        return due

    def write(self, **changes: Any) -> None:
        """Write the view, with changes, unless a newer attempt has the lease. Never raises."""
        try:
            self._lease.check()
            view = replace(self._look(), **changes)
            write_view(self._files, view, self._clock.now_ms(), notes=self._notes(), token=self._lease.token)
        except Exception as error:
            log.warning("the view of the job is not stored: %s", error)
        self._next = self._clock.monotonic() * 1000 + EVERY_MS

"""The state browser: what is in a retained checkpoint or savepoint, its entries as texts, and the difference of two.

Only snapshots in the directories of known jobs are opened, and only those that the user of this server or root has written. Their
pickles are loaded as the job itself would load them, and a pickle runs code of its writer: a path that anybody could have written
to stays closed here.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from itertools import islice
from typing import Any

import msgspec

from tidegate.base.errors import RefusedError, SnapshotError, TidegateError
from tidegate.base.files import Files
from tidegate.checkpoint.disposal import dispose
from tidegate.checkpoint.history import CheckpointStatus, list_checkpoints
from tidegate.checkpoint.metadata import FILE_NAME, SAVEPOINT
from tidegate.control.jobs import checked_target, lies_below, resolved
from tidegate.control.messages import OperationStatus
from tidegate.control.registry import directories_in_use
from tidegate.control.shown import ShownJob, ShownJobs
from tidegate.runtime.view import Outcome
from tidegate.snapshots.difference import difference
from tidegate.snapshots.entries import StateRow, TimerRow
from tidegate.snapshots.reader import KEYED, TIMERS, OperatorInfo, SnapshotReader, as_text, keyed_parts

LONGEST_TEXT = 2_000
MOST_ENTRIES = 1_000
MOST_SCANNED = 200_000
"""Entries that one request reads at most while it looks for a key. The answer then has a cursor to continue from."""
COUNT_BYTES = 16 << 20
"""Entries are counted where the operator's files are smaller: counting reads them all."""


class Snapshot(msgspec.Struct, frozen=True, kw_only=True):
    """A snapshot of a job. ``kept``: it still exists, as far as known without a look at each."""

    path: str
    kind: str
    checkpoint_id: int
    at_ms: int
    size: int
    kept: bool


class StateFigures(msgspec.Struct, frozen=True, kw_only=True):
    """A state of an operator. ``bytes`` and ``entries`` are None if they were not counted."""

    name: str
    kind: str
    type: str
    scope: str
    bytes: int | None
    entries: int | None


class OperatorFigures(msgspec.Struct, frozen=True, kw_only=True):
    operator: str
    uid: str | None
    name: str
    parallelism: int
    bytes: int
    states: tuple[StateFigures, ...]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    namespace: str | None
    value: str


class Entries(msgspec.Struct, frozen=True, kw_only=True):
    entries: tuple[Entry, ...]
    next: str | None


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    key: str
    before: str | None
    after: str | None


class Difference(msgspec.Struct, frozen=True, kw_only=True):
    added: int
    removed: int
    changed: int
    entries: tuple[Changed, ...]


def snapshots_of(job: ShownJob) -> list[Snapshot]:
    """Return the checkpoints of a job that still exist and the savepoints that it has made, newest first."""
    details, _ = job.details()
    found: dict[str, Snapshot] = {}
    if details.directory:
        for each in list_checkpoints(Files(details.directory)).checkpoints:
            path = each.kept
            if path is not None and each.status is CheckpointStatus.COMPLETED:
                found[path] = Snapshot(
                    path=path,
                    kind=each.kind,
                    checkpoint_id=each.checkpoint_id,
                    at_ms=each.end_ms,
                    size=each.size,
                    kept=True,
                )
    for view in details.checkpoints:
        if view.address is not None and view.status is Outcome.COMPLETED:
            found[view.address] = Snapshot(
                path=view.address,
                kind=SAVEPOINT,
                checkpoint_id=view.checkpoint_id,
                at_ms=view.passed_ms.get(7, 0),
                size=view.size,
                kept=True,
            )
    for done in job.operations():
        if done.status is OperationStatus.SUCCEEDED and "/savepoint-" in (done.result or ""):
            path = str(done.result)
            at_ms = done.ended_ms or done.started_ms
            made = Snapshot(path=path, kind=SAVEPOINT, checkpoint_id=0, at_ms=at_ms, size=0, kept=True)
            found.setdefault(path, made)
    return sorted(found.values(), key=lambda each: -each.at_ms)


def opened(jobs: ShownJobs, path: str) -> SnapshotReader:
    """Open a snapshot of a known job. Raise TidegateError if the path is not one, or there is no snapshot."""
    checked_target(path, None, None)
    text = path.rstrip("/").removesuffix("/_metadata")
    if not any(lies_below(text, place) or text == place for job in jobs.all() for place in _places(job)):
        raise RefusedError(
            "Only snapshots of listed jobs are opened here, because a snapshot can run code",
            where=path,
            found="it is not below a directory of a listed job, and no listed job has made it",
            cure=f"open it in a terminal, if you trust it: tidegate state {path}",
        )
    _check_writer(text)
    return SnapshotReader(path)


def _check_writer(path: str) -> None:
    """Refuse a local snapshot that another user could have written: a job's directory for savepoints may be one for everybody."""
    place = resolved(path)
    for each in (place, os.path.join(place, FILE_NAME)) if place.startswith("/") else ():
        try:
            facts = os.stat(each)
        except OSError:  # SnapshotReader says what is missing
            return
        foreign = facts.st_uid not in (0, os.geteuid())
        if foreign or facts.st_mode & stat.S_IWOTH:
            raise RefusedError(
                "Only snapshots that nobody else could write are opened here, because a snapshot can run code",
                where=each,
                found=f"its owner is the user {facts.st_uid}" if foreign else "every user may write there",
                cure=f"open it in a terminal, if you trust it: tidegate state {path}",
            )


def _places(job: ShownJob) -> Iterator[str]:
    details, _ = job.details()
    if details.directory:
        yield details.directory
    configured = details.configuration.get("execution.checkpointing.savepoint-dir")
    if configured:
        yield configured
    for done in job.operations():
        if done.status is OperationStatus.SUCCEEDED and "/savepoint-" in (done.result or ""):
            yield str(done.result)
    for view in details.checkpoints:
        if view.address is not None:
            yield view.address
    for attempt in details.attempts:
        if attempt.checkpoint:
            yield attempt.checkpoint


def operators_of(reader: SnapshotReader) -> list[OperatorFigures]:
    return [_operator(reader, info) for info in reader.operators]


def _operator(reader: SnapshotReader, info: OperatorInfo) -> OperatorFigures:
    counts = reader.count(info.uid_hash) if info.bytes <= COUNT_BYTES else {}
    states = [
        StateFigures(
            name=state.name,
            kind=state.kind,
            type=f"{state.map_key_type} to {state.type}" if state.map_key_type else state.type,
            scope=state.scope,
            bytes=counts[state.name].bytes if state.name in counts else None,
            entries=counts[state.name].entries if state.name in counts else None,
        )
        for state in info.states
    ]
    has_timers = any(found for found in keyed_parts(reader.stored(info.uid_hash)))
    if has_timers and all(state.name != TIMERS for state in info.states) and TIMERS in counts:
        timers = counts[TIMERS]
        states.append(StateFigures(name=TIMERS, kind=TIMERS, type="", scope=KEYED, bytes=None, entries=timers.entries))
    return OperatorFigures(
        operator=info.uid_hash,
        uid=info.uid,
        name=info.name,
        parallelism=info.parallelism,
        bytes=info.bytes,
        states=tuple(states),
    )


def entries_of(reader: SnapshotReader, operator: str, state: str, *, key: str, limit: int, after: int) -> Entries:
    """Return entries whose key contains the text, from the entry with the number ``after`` on."""
    rows = _rows(reader, operator, state)
    found: list[Entry] = []
    position = after
    for row in islice(rows, after, after + MOST_SCANNED):
        if len(found) >= limit:
            return Entries(entries=tuple(found), next=str(position))
        position += 1
        entry = _entry(row)
        if not key or key in entry.key:
            found.append(entry)
    more = position == after + MOST_SCANNED
    return Entries(entries=tuple(found), next=str(position) if more else None)


def _rows(reader: SnapshotReader, operator: str, state: str) -> Iterator[StateRow | TimerRow]:
    info = reader.operator(operator)
    if state == TIMERS and all(each.name != TIMERS for each in info.states):
        return reader.read_timers(info.uid_hash)
    return reader.read(info.uid_hash, state)


def _entry(row: StateRow | TimerRow) -> Entry:
    namespace = None if row.namespace is None else _text(row.namespace)
    if isinstance(row, TimerRow):
        return Entry(key=_text(row.key), namespace=namespace, value=f"{row.time_ms} ({row.domain} time)")
    key = " / ".join(_text(part) for part in (row.key, row.map_key) if part is not None)
    return Entry(key=key, namespace=namespace, value=_text(row.value))


def _text(value: Any) -> str:
    try:
        text = as_text(value)
    except Exception as error:  # the repr of a class of the user
        text = f"<{type(value).__name__} without a text: {type(error).__name__}>"
    return text if len(text) <= LONGEST_TEXT else f"{text[:LONGEST_TEXT]} ... ({len(text):,} characters)"


def difference_of(
    before: SnapshotReader, after: SnapshotReader, operator: str, state: str, *, limit: int
) -> Difference:
    """Compare one state of an operator in two snapshots, or all of them where ``operator`` or ``state`` is empty."""
    if operator and not any(_has(reader, operator) for reader in (before, after)):
        after.operator(operator)  # raises, and names the operators there are
    added = removed = changed = 0
    found: list[Changed] = []
    for change in difference(before, after, examples=limit):
        owner = change.now or change.before
        assert owner is not None
        if operator and operator not in (owner.uid, owner.uid_hash, owner.name):
            continue
        for each in change.states:
            if state and each.state != state:
                continue
            added, removed, changed = added + each.added, removed + each.removed, changed + each.changed
            head = "" if operator and state else f"{owner.uid or owner.name} {each.state} "
            found += [_changed(head, old, new) for old, new in each.examples]
    return Difference(added=added, removed=removed, changed=changed, entries=tuple(found[:limit]))


def _has(reader: SnapshotReader, operator: str) -> bool:
    try:
        reader.operator(operator)
    except SnapshotError:
        return False
    return True


def _changed(head: str, old: Any, new: Any) -> Changed:
    sides = [None if row is None else _entry(row) for row in (old, new)]
    shown = sides[1] or sides[0]
    assert shown is not None
    key = shown.key if shown.namespace is None else f"{shown.key} {shown.namespace}"
    return Changed(
        key=head + key,
        before=sides[0].value if sides[0] is not None else None,
        after=sides[1].value if sides[1] is not None else None,
    )


def dispose_of(jobs: ShownJobs, path: str) -> None:
    """Delete a snapshot for good. Raise TidegateError if a job may need it."""
    opened(jobs, path)
    dispose(path, directories_in_use())


def cursor(text: str | None) -> int:
    if text is None or text == "":
        return 0
    if re.fullmatch(r"\d{1,12}", text) is None:
        raise TidegateError(
            "The cursor is invalid", found=repr(text)[:100], cure="take it from 'next' of the last answer"
        )
    return int(text)

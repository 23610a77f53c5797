"""A verifying sink: a ledger of committed records that an observer outside the job reads and audits."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass, field
from typing import Any

from tidegate.base import faults
from tidegate.base.errors import CommitError
from tidegate.base.files import Files
from tidegate.operators.contracts.sink import (
    Committer,
    CommitterContext,
    Prepared,
    Publication,
    Sink,
    SinkGuarantee,
    SinkWriter,
    WriterContext,
)


class LedgerSink(Sink):
    """Exactly-once, the simple way: each attempt writes one page below ``staged/``, the commit renames it into
    ``committed/``.

    Values must survive JSON (tuples come back as lists).
    """

    publication = Publication.CHECKPOINT
    guarantee = SinkGuarantee.TWO_PHASE_COMMIT

    def __init__(self, directory: str) -> None:
        self.directory = directory

    def create_writer(self, context: WriterContext, state: list[Any]) -> SinkWriter:
        return _LedgerWriter(self.directory, context)

    def create_committer(self, context: CommitterContext) -> Committer:
        return _LedgerCommitter(self.directory, context)


class _LedgerWriter(SinkWriter):
    def __init__(self, directory: str, context: WriterContext) -> None:
        self._files, self._context = Files(directory), context
        self._lines: list[str] = []
        self._page = f"{context.sink_id}/{context.round:010d}-{context.subtask:04d}-{context.attempt}"
        self._staged = False

    def write_batch(self, values: list[Any], timestamps: list[int] | None) -> None:
        self._lines += [json.dumps(value) for value in values]

    def prepare_commit(self, end_of_input: bool) -> Prepared:
        if not self._lines:
            return Prepared()
        faults.point("K1.ledger.flush", page=self._page)
        self._files.write(f"staged/{self._page}", "\n".join(self._lines).encode())
        self._staged = True
        return Prepared([{"page": self._page}])

    def abort(self) -> None:
        if self._staged:
            self._files.delete(f"staged/{self._page}")


class _LedgerCommitter(Committer):
    def __init__(self, directory: str, context: CommitterContext) -> None:
        self._files, self._sink_id, self._check_lease = Files(directory), context.sink_id, context.check_lease

    def commit(self, committables: list[Any]) -> None:
        for committable in committables:
            page = committable["page"]
            faults.point("K3.ledger.before-commit", page=page)
            if self._files.exists(f"staged/{page}"):
                self._files.rename(f"staged/{page}", f"committed/{page}")
            elif not self._files.exists(f"committed/{page}"):
                raise CommitError("a prepared page must be there", where=self._files.root, found=f"no page {page}")
            faults.point("K3.ledger.committed", page=page)

    def abort(self, committables: list[Any]) -> None:
        for committable in committables:
            self._files.delete(f"staged/{committable['page']}")

    def abort_lingering(self, committables: list[Any], states: list[Any]) -> None:
        wanted = {f"staged/{committable['page']}" for committable in committables}
        listed = self._files.list(f"staged/{self._sink_id}")
        faults.point("K2.ledger.listed", pages=len(listed))
        self._check_lease()
        for path in listed:
            if path not in wanted:
                self._files.delete(path)


@dataclass
class Audit:
    """What an observer found wrong. ``disordered``: keys whose records are not in order."""

    lost: Counter[Any] = field(default_factory=Counter)
    doubled: Counter[Any] = field(default_factory=Counter)
    unknown: Counter[Any] = field(default_factory=Counter)
    disordered: list[Any] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.doubled or self.unknown or self.disordered)


class LedgerObserver:
    """Reads committed pages only, never the job's own counters. Every look checks that nothing committed has gone
    (I5).
    """

    def __init__(self, directory: str) -> None:
        self._files = Files(directory)
        self._pages: dict[str, list[Any]] = {}

    def look(self) -> list[Any]:
        """All committed values, by sink, round and subtask."""
        names = self._files.list("committed")
        missing = set(self._pages) - set(names)
        assert not missing, f"committed pages disappeared: {sorted(missing)}"
        for name in names:
            if name not in self._pages:
                text = self._files.read_bytes(name).decode()
                self._pages[name] = [json.loads(line) for line in text.split("\n")]
        return [value for name in names for value in self._pages[name]]

    def staged(self) -> list[str]:
        """Pages that are neither committed nor aborted."""
        return self._files.list("staged")


def audit(
    expected: Iterable[Any],
    found: Iterable[Any],
    *,
    key: Callable[[Any], Hashable] | None = None,
    order: Callable[[Any], Any] | None = None,
) -> Audit:
    """Compare what a run without faults would give with what is there. With ``key`` and ``order``, records of a
    key must come in growing order.
    """
    want, have, values = Counter(map(_hashable, expected)), Counter[Any](), list(found)
    have.update(map(_hashable, values))
    result = Audit(lost=want - have)
    for value, extra in (have - want).items():
        (result.doubled if value in want else result.unknown)[value] = extra
    if key is not None and order is not None:
        by_key: dict[Hashable, list[Any]] = defaultdict(list)
        for value in values:
            by_key[key(value)].append(order(value))
        result.disordered = [name for name, places in by_key.items() if places != sorted(places)]
    return result


def _hashable(value: Any) -> Any:
    if isinstance(value, (list, tuple)):
        return tuple(map(_hashable, value))
    if isinstance(value, dict):
        return tuple(sorted((name, _hashable(item)) for name, item in value.items()))
    return value

"""The outside observer of a simulated job: reads what is committed and what lies on storage, never the job's counters."""

from __future__ import annotations

import json
import os
import tempfile
from collections import defaultdict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

from tests.sinks import audit
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.checkpoint.locate import Located, all_completed, locate_own, read_lineage
from tidegate.checkpoint.metadata import CheckpointMetadata
from tidegate.connectors.functions.two_phase_commit import TwoPhaseCommitSinkFunction
from tidegate.state.backend import KeyedBackend
from tidegate.state.refs import KeyGroupRange
from tidegate.state.stores import StoreOptions, opener

Cause = tuple[str, int, int]
"""The input record an output came of: uid of the source, split, position in the split."""

Coverage = dict[str, list[int]]
"""Per source (uid) the position each split has reached."""


def covers(coverage: Coverage, cause: Cause) -> bool:
    source, split, position = cause
    return source in coverage and position < coverage[source][split]


def coverage_of(metadata: CheckpointMetadata) -> Coverage:
    """What a checkpoint covers, from its sources' positions."""
    return {o.uid: list(o.source) for o in metadata.operators if o.uid and o.source is not None}


@dataclass(frozen=True)
class Output:
    """One sink as a reader sees it, and what it must hold in the end.

    ``pages``: what is committed, by file or transaction, in the order a reader would take. ``leftovers``: what lies there
    and is not committed. ``key`` and ``order``: records of a key must come in this order, over all pages if ``in_order``,
    else within each. ``every_checkpoint``: a commit shows all that its checkpoint covers; False where files stay open.
    """

    name: str
    expected: list[Any]
    pages: Callable[[], dict[str, list[Any]]]
    leftovers: Callable[[], list[str]]
    cause: Callable[[Any], Cause | None]
    key: Callable[[Any], Hashable] | None = None
    order: Callable[[Any], Any] | None = None
    in_order: bool = False
    every_checkpoint: bool = True


class OutputObserver:
    """Looks at one output again and again; every look checks what must hold at any moment."""

    unaligned = False
    """What a checkpoint covers may still be in flight in it."""

    def __init__(self, output: Output) -> None:
        self.output = output
        self._seen: dict[str, list[Any]] = {}

    def look(self, published: list[Coverage], committed: Coverage, settled: bool) -> None:
        """I5. ``published``: by all complete checkpoints; ``committed``: by the latest one that is committed as a whole.
        ``settled``: no commit is under way or was cut short."""
        pages = self.output.pages()
        for name, values in self._seen.items():
            assert pages.get(name) == values, f"I5: {self.output.name}: page {name} changed or disappeared"
        self._seen = pages
        visible = {c for values in pages.values() for v in values if (c := self.output.cause(v)) is not None}
        early = [cause for cause in visible if not any(covers(coverage, cause) for coverage in published)]
        assert not early, f"I5: {self.output.name}: visible before their checkpoint is complete: {early}"
        if self.output.every_checkpoint:
            wanted = {c for v in self.output.expected if (c := self.output.cause(v)) and covers(committed, c)}
            missing = [] if self.unaligned else sorted(wanted - visible)
            assert not missing, f"I5: {self.output.name}: committed and not visible: {missing}"
            extra = sorted(visible - wanted) if settled else []
            assert not extra, f"I5: {self.output.name}: a part of a checkpoint is visible: {extra}"

    def check_records(self) -> None:
        """I1 to I4 and I6, when the job has finished."""
        output, pages = self.output, self.output.pages()
        values = [value for page in pages.values() for value in page]
        groups = [values] if output.in_order else list(pages.values())
        found = audit(output.expected, values)
        assert not found.lost, f"I1: {output.name}: lost {dict(found.lost)}"
        assert not found.doubled, f"I2: {output.name}: doubled {dict(found.doubled)}"
        assert not found.unknown, f"I4: {output.name}: never to be sent {dict(found.unknown)}"
        for group in groups:
            order = audit(group, group, key=output.key, order=output.order)
            assert not order.disordered, f"I3: {output.name}: out of order {order.disordered}"

    def check_leftovers(self) -> None:
        """I12."""
        left = self.output.leftovers()
        assert not left, f"I12: {self.output.name}: left behind {left}"


class RepeatingObserver(OutputObserver):
    """Of a job that promises at-least-once: a record may come twice, and what any complete checkpoint covers is out for good."""

    def look(self, published: list[Coverage], committed: Coverage, settled: bool) -> None:
        pages = self.output.pages()
        for name, values in self._seen.items():
            assert pages.get(name) == values, f"I5: {self.output.name}: page {name} changed or disappeared"
        self._seen = pages
        visible = {c for values in pages.values() for v in values if (c := self.output.cause(v)) is not None}
        wanted = {c for v in self.output.expected if (c := self.output.cause(v)) is not None}
        missing = [c for c in sorted(wanted - visible) if any(covers(coverage, c) for coverage in published)]
        assert not missing, (
            f"I1: {self.output.name}: a complete checkpoint covers them, and they are not out: {missing}"
        )

    def check_records(self) -> None:
        """I1, I4."""
        values = [value for page in self.output.pages().values() for value in page]
        found = audit(self.output.expected, values)
        assert not found.lost, f"I1: {self.output.name}: lost {dict(found.lost)}"
        assert not found.unknown, f"I4: {self.output.name}: never to be sent {dict(found.unknown)}"


# -- places to look at ---------------------------------------------------------------------------------------------------


def file_pages(directory: str) -> dict[str, list[Any]]:
    """Part files of a file sink of JSON lines, as a reader that skips hidden ones sees them."""
    return {name: _lines(f"{directory}/{name}") for name in _files(directory) if not _is_hidden(name)}


def hidden_files(directory: str) -> list[str]:
    return [name for name in _files(directory) if _is_hidden(name)]


def ledger_pages(directory: str) -> dict[str, list[Any]]:
    """Committed pages of a ``LedgerSink``."""
    return {name: _lines(f"{directory}/committed/{name}") for name in _files(f"{directory}/committed")}


def staged_pages(directory: str) -> list[str]:
    return [name for name in _files(directory) if not name.startswith("committed/")]


def _files(directory: str) -> list[str]:
    found = (os.path.join(place, name) for place, _, names in os.walk(directory) for name in names)
    return sorted(os.path.relpath(path, directory) for path in found)


def _is_hidden(name: str) -> bool:
    return os.path.basename(name).startswith(".")


def _lines(path: str) -> list[Any]:
    with open(path) as file:
        return [json.loads(line) for line in file.read().splitlines()]


@dataclass
class Outside:
    """A transactional system in memory, which outlives drivers and notices what nobody may ask of it."""

    open: dict[str, list[Any]] = field(default_factory=dict)
    committed: dict[str, list[Any]] = field(default_factory=dict)
    aborted: set[str] = field(default_factory=set)
    violations: list[str] = field(default_factory=list)
    refusals: int = 0
    """So many commits more fail, in turn before and after they took effect (an answer lost)."""

    @staticmethod
    def at(address: str) -> Outside:
        return _systems[address]

    @staticmethod
    def forget_all() -> None:
        _systems.clear()

    def pages(self) -> dict[str, list[Any]]:
        return dict(self.committed)

    def write(self, transaction: str, value: Any) -> None:
        if transaction in self.aborted or transaction in self.committed:
            raise ConnectionError(f"{transaction} is over")
        self.open.setdefault(transaction, []).append(value)

    def commit(self, transaction: str) -> None:
        if self.refusals:
            self.refusals -= 1
            if self.refusals % 2:
                raise ConnectionError("the outside system is down")
        if transaction in self.aborted:
            self.violations.append(f"commit of {transaction}, which was aborted")
        if transaction not in self.committed:
            self.committed[transaction] = self.open.pop(transaction)
        if self.refusals:
            self.refusals -= 1
            raise ConnectionError("the answer was lost")

    def abort(self, transaction: str) -> None:
        if transaction in self.committed:
            self.violations.append(f"abort of {transaction}, which was committed")
        self.open.pop(transaction, None)
        self.aborted.add(transaction)


_systems: dict[str, Outside] = defaultdict(Outside)


class OutsideTransactions(TwoPhaseCommitSinkFunction):
    """The client of an ``Outside``. A transaction exists from its first record on."""

    def __init__(self, address: str) -> None:
        self._address = address

    def begin_transaction(self) -> str:
        return f"txn-{new_token()}"

    def invoke(self, transaction: Any, value: Any, context: Any) -> None:
        Outside.at(self._address).write(transaction, value)

    def pre_commit(self, transaction: Any) -> None:
        if transaction not in Outside.at(self._address).open:
            raise ConnectionError(f"{transaction} is over")

    def commit(self, transaction: Any) -> None:
        Outside.at(self._address).commit(transaction)

    def abort(self, transaction: Any) -> None:
        Outside.at(self._address).abort(transaction)


# -- checkpoints on storage ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class StateProbe:
    """One keyed state of the program, and what a plain Python model says it holds at a coverage: key -> value."""

    uid: str
    descriptor: Any
    expected: Callable[[Coverage], dict[Any, Any]]
    key_type: Any = None


def check_retained(directory: str) -> None:
    """I7: every checkpoint that can be read has all its files, also one on its way out (metadata goes first, C7)."""
    files = Files(directory)
    for point in all_completed(files):
        locate_own(files, point).check_files()


def check_state(directory: str, probe: StateProbe) -> None:
    """I6 and I7: every retained checkpoint restores, and its state is the model's."""
    files = Files(directory)
    for point in read_lineage(files).retained:
        _check_state(locate_own(files, point), probe)


def _check_state(located: Located, probe: StateProbe) -> None:
    operator = next(o for o in located.metadata.operators if o.uid == probe.uid)
    if located.metadata.is_unaligned:  # what its sources have read is not all processed
        return
    expected = probe.expected(coverage_of(located.metadata))
    with tempfile.TemporaryDirectory(dir="/dev/shm") as local:
        backend = KeyedBackend(
            operator=operator.uid_hash,
            operator_name=operator.name,
            groups=KeyGroupRange(0, operator.max_parallelism - 1),
            max_parallelism=operator.max_parallelism,
            key_type=probe.key_type,
            local_path=local,
            files=located.root,
            open_store=opener(options=StoreOptions(map_size=1 << 20)),
        )
        state = backend.state(probe.descriptor)
        backend.begin(operator.keyed_files())
        found = {}
        for key in expected:
            backend.context.key = backend.identity(key)
            found[key] = state.value()
        backend.end()
    assert found == expected, f"I6: state of checkpoint {located.metadata.checkpoint_id}: {found}, expected {expected}"


def check_storage(directory: str, *, ended: bool, delete_failed: bool = False) -> set[str]:
    """I8 and I12: behind a sweep exactly what is referenced is there; behind the end of the job only its records.

    ``delete_failed``: storage refused a delete of that sweep, so what it left is returned, to be looked for later.
    """
    files = Files(directory)
    lineage = read_lineage(files)
    points = lineage.protected if ended else [*lineage.protected, *lineage.retained]
    referenced = {f"chk-{point.checkpoint_id}/_metadata" for point in points if not point.directory}
    for point in points:
        referenced |= locate_own(files, point).metadata.paths() if not point.directory else set()
    found = {path for path in files.list() if not _is_record(path)}
    if not ended:
        found = {path for path in found if not path.startswith("taskowned/") or path.endswith(".tmp")}
    left = found - referenced
    assert delete_failed or not left, f"I8: on storage and not referenced: {sorted(left)}"
    assert not referenced - found, f"I8: referenced and not on storage: {sorted(referenced - found)}"
    return left


def _is_record(path: str) -> bool:
    return (
        path in ("history.json", "view.json")
        or path.startswith("failed-round")
        or (path.startswith("lease/0") and path.endswith(".json"))
    )

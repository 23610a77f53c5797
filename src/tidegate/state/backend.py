"""The keyed backend of a subtask: its states and timers over a local store, round by round."""

from __future__ import annotations

import os
import weakref
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tidegate.base import faults
from tidegate.base.arguments import shown
from tidegate.base.errors import InternalError, StateAccessError, TidegateError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token
from tidegate.common.options import CACHE_SIZE
from tidegate.state import keyed, ttl_states
from tidegate.state.codecs import codec_for, expiry_of, list_codec_for
from tidegate.state.context import FORKED, NO_KEY, KeyContext
from tidegate.state.descriptors import StateDescriptor, expect_descriptor, schema_of
from tidegate.state.keyed import KeyedMapState
from tidegate.state.keys import key_identity, visible
from tidegate.state.layout import EVENT, PROCESSING, STATE, TIMERS, state_name, timer_from_local
from tidegate.state.materialize import Expired, applied_to, bring_up, merge_files
from tidegate.state.refs import KeyGroupRange, Misfits, StateFile, StateSchema, schema_mismatch
from tidegate.state.segments import SegmentWriter, read
from tidegate.state.single import ENTRY_BYTES, Changes, Entries, KeyedState, SingleState
from tidegate.state.slices import SlicedState
from tidegate.state.store import LocalStore, Snapshot, keep_for_ever, used_in_child
from tidegate.state.stores import OpenStore
from tidegate.state.timers import TimerQueue, TimersInMemory

DEFAULT_CACHE_BYTES: int = CACHE_SIZE.default
"""About how much memory the caches of a subtask may take, all states together."""

TIMER_SLICE = 10_000

CATCH_UP = 4
"""A cache catches up with at most this many times its own entries: reading one again from the store costs as much."""

LEARNT_ANEW = 8 << 20
"""About the most memory for entries that an empty cache takes over from all files, to be whole from then on."""

MOST_TIMERS = 50_000
"""The most timers that are kept in memory. With each round that changes some, all are sorted again."""

OFTEN = 4
"""One miss in this many records is often: reading them together costs about half as much."""

PROBE_EVERY = 16
"""In one of this many chunks, one of this many keys is not prefetched, to see whether the states are still read."""


_KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "value": (keyed.KeyedValueState, ttl_states.TtlValueState),
    "list": (keyed.KeyedListState, ttl_states.TtlListState),
    "map": (KeyedMapState, ttl_states.TtlMapState),
    "reducing": (keyed.KeyedReducingState, ttl_states.TtlReducingState),
    "aggregating": (keyed.KeyedAggregatingState, ttl_states.TtlAggregatingState),
    "slices": (SlicedState, SlicedState),
}


class KeyedBackend:
    """State and timers of one subtask. Made once in a Python worker and used for many rounds.

    A round: ``begin`` with the accepted list of files; the loop sets ``context`` while user functions run; ``write_segment``;
    ``end``. State objects survive rounds. Their contents survive only through the list of the next ``begin``.

    Why a failure, anywhere, leaves no trace:

    - The local store is only ever brought to the list of ``begin``, never to the changes of this round. The workers of a host, and
      attempts that do not know of each other, share the store; each moves it to a list that was accepted (``materialize.py``).
    - The caches belong to this object alone. ``_held`` is the list of files whose contents they have. It is None while a round
      runs, because no file contains the changes so far. ``write_segment`` sets it when the file is durable. The next list tells
      whether that file was accepted: if the file is not in the list, and no merge replaced it, the caches are emptied
      (``applied_to``).
    - So caches and store are two independent copies of accepted prefixes, and either may lag the list. ``begin`` brings up or
      empties the caches. The first read brings up the store; many rounds never read it: caches that are ``whole`` know what
      does not exist.
    """

    __slots__ = (
        "__weakref__",
        "_begun",
        "_chunks",
        "_compressed",
        "_files",
        "_held",
        "_local_path",
        "_open_store",
        "_snapshot",
        "_states",
        "_store",
        "_timerless",
        "_timers",
        "cache_bytes",
        "context",
        "event_timers",
        "get",
        "get_long",
        "get_many",
        "groups",
        "identity",
        "located",
        "max_key",
        "max_parallelism",
        "misfits",
        "operator",
        "operator_name",
        "processing_timers",
        "scan",
        "shares",
        "stored",
        "unbroken",
    )

    get: Callable[[bytes], bytes | None]
    get_long: Callable[[bytes], bytes | None]
    get_many: Callable[[list[bytes]], list[bytes | None]]
    scan: Callable[[bytes], Iterator[tuple[bytes, bytes]]]

    def __init__(
        self,
        *,
        operator: str,
        operator_name: str,
        groups: KeyGroupRange,
        max_parallelism: int,
        key_type: Any,
        local_path: str,
        files: Files,
        open_store: OpenStore,
        cache_bytes: int = DEFAULT_CACHE_BYTES,
        compressed: bool = False,
    ) -> None:
        self.operator, self.operator_name = operator, operator_name
        self.groups, self.max_parallelism = groups, max_parallelism
        self.identity = key_identity(key_type)
        self.cache_bytes = cache_bytes
        self._compressed = compressed
        self.misfits = Misfits(operator_name)
        self.context = KeyContext()
        self._files, self._local_path, self._open_store = files, local_path, open_store
        self._states: dict[str, KeyedState] = {}
        self.stored: list[StateSchema] = []
        self._store: LocalStore | None = None
        self._snapshot: Snapshot | None = None
        self._timerless = False
        self._timers: TimersInMemory | None = None
        """The timers of the accepted files, unless they are many, or some were not seen."""
        self._begun: list[StateFile] = []
        self._held: list[StateFile] | None = None
        self.shares: dict[str, dict[str, int]] = {}
        """Of the files that this round has written, by path: about how many bytes belong to which state."""
        self._chunks = 0
        self.located: tuple[Any, bytes, int] = object(), b"", 0
        """The key that was last looked for in the store, its bytes and its group: the next state is often read for the same key."""
        self.unbroken = False
        """Whether the round continues where this object left the previous one. Then callers may keep their own memory too."""
        self.event_timers = TimerQueue(self, EVENT)
        self.processing_timers = TimerQueue(self, PROCESSING)
        self._detach()
        _backends.add(self)

    # -- states --

    def state(self, descriptor: StateDescriptor) -> Any:
        """Return the state of a descriptor. The same name returns the same object, if kind and type are the same."""
        descriptor = expect_descriptor(descriptor, self.operator_name)
        known = self._states.get(descriptor.name)
        if known is None:
            self._refuse_other_than_stored(schema_of(descriptor))
            known = self._states[descriptor.name] = self._make(descriptor)
            known.whole = (
                known.keeps and self.cache_bytes > 0 and self._store is not None and not self._begun
            )  # no entries
        elif schema_of(known.descriptor) != schema_of(descriptor):
            raise StateAccessError(
                "Two states with the same name differ in kind, types or time to live.",
                where=f"state {descriptor.name!r} of operator {self.operator_name!r}",
                found=f"{schema_of(descriptor)}, registered before as {schema_of(known.descriptor)}",
                cure="give the second state another name",
            )
        return known

    def _refuse_other_than_stored(self, declared: StateSchema) -> None:
        """Report a state that is declared differently from how it is stored: it is never decoded by a guess."""
        problem = schema_mismatch(self.stored, declared)
        if problem is not None:
            self.misfits.found(problem)

    def _make(self, descriptor: StateDescriptor) -> KeyedState:
        plain, with_ttl = _KINDS[descriptor.kind]
        made: KeyedState
        if descriptor.ttl is not None:
            made = with_ttl(self, descriptor, ttl_states.ttl_codec_for(descriptor))
        elif descriptor.kind == "list":
            made = plain(self, descriptor, list_codec_for(descriptor.type_info))
        else:
            codec = codec_for(descriptor.type_info)
            if descriptor.kind == "value" and codec.immutable:
                plain = keyed.ImmutableValueState
            made = plain(self, descriptor, codec)
        return made

    @property
    def key_schema(self) -> str:
        """A stable text of the declared key type, ``pickle`` without one. With another key type, stored keys are other keys."""
        return self.identity.describe

    def registered(self) -> dict[str, KeyedState]:
        """Return the registered states by name."""
        return dict(self._states)

    def schemas(self) -> list[StateSchema]:
        """Return the schemas of the registered states, sorted by name."""
        return [schema_of(self._states[name].descriptor) for name in sorted(self._states)]

    # -- a round --

    def begin(self, files: list[StateFile], replaced: Collection[str] = ()) -> None:
        """Open the round on exactly this list.

        ``replaced``: paths of files that merges have recently removed from the list.
        """
        self._close_snapshot()
        self.shares = {}
        held, self._held = self._held, None  # until the round has written its changes, the caches match no list
        self._begun = list(files)
        self._store = self._open_store(self._local_path)
        self.max_key = self._store.max_key
        self.get, self.get_long, self.scan = self._first_get, self._first_get_long, self._first_scan
        self.get_many = self._first_get_many
        start = 0 if held is None else applied_to(held, files, replaced, self.groups)
        self.unbroken = held is not None and start == len(files) and (start > 0 or not held)
        self._timerless = self._catch_up(files[start:], start == 0) and (start == 0 or self._timerless)
        if self._timers is not None and len(self._timers) > MOST_TIMERS:
            self._timers = None
        if not self._timerless and self._timers is None:
            self._timerless = not self._opened().timers(b"\x00", 1)[0]
        for timers in (self.event_timers, self.processing_timers):
            timers.reset(self._snapshot if self._timers is None else self._timers)
        self.trim_caches()

    def _catch_up(self, files: list[StateFile], anew: bool) -> bool:
        """Apply the files to the caches, after emptying them if ``anew``. Return whether the files certainly have no timers."""
        entries = sum(file.entries for file in files)
        memory = entries * ENTRY_BYTES + sum(file.size for file in files)  # few entries may be large
        small = self.cache_bytes > 0 and memory <= min(LEARNT_ANEW, self.cache_bytes)
        learning, timerless = [], True
        for state in self._states.values():
            worth_it = entries <= CATCH_UP * state.cached() or (state.whole and not anew)
            worth_it = worth_it and memory <= self.cache_bytes
            state.reset(keep=worth_it and not anew)
            if anew and small and state.keeps:
                state.whole = worth_it = True
            if worth_it:
                learning.append(state)
        if anew:
            self._timers = TimersInMemory() if small else None
        elif entries > MOST_TIMERS:
            self._timers = None
        if files and not learning and self._timers is None:
            return False
        try:
            for file in files:
                timers = list[Any]()
                for block in read(self._files, file, self.groups):
                    if block.table == STATE:
                        found = Entries(block.flat)
                        for state in learning:
                            state.learn(found)
                        self.trim_caches()  # compressed files have more than their size
                    else:
                        timerless = False
                        timers += block.flat
                if timers and self._timers is not None:
                    self._timers.apply(timers)
        except BaseException:
            self._forget()  # a part of the files is not what was accepted
            raise
        return timerless

    def _opened(self) -> Snapshot:
        """Return the local store in the state of this round. The first read brings it there: many rounds find all in memory."""
        if self._snapshot is None:
            if self._store is None:
                raise _no_round()
            snapshot = self._snapshot = bring_up(self._store, self._files, self._begun, self.groups)
            self.get, self.get_long, self.scan = snapshot.get, snapshot.get_long, snapshot.scan
            self.get_many = snapshot.get_many
        return self._snapshot

    def _first_get(self, key: bytes) -> bytes | None:
        return self._opened().get(key)

    def _first_get_long(self, key: bytes) -> bytes | None:
        return self._opened().get_long(key)

    def _first_get_many(self, keys: list[bytes]) -> list[bytes | None]:
        return self._opened().get_many(keys)

    def _first_scan(self, prefix: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._opened().scan(prefix)

    def prefetch(self, keys: list[Any]) -> None:
        """Read the states of these keys together, for states that often missed lately. Called once per chunk with its keys."""
        self.trim_caches()
        self._chunks += 1
        left_out = 0 if self._chunks % PROBE_EVERY else len(keys) // PROBE_EVERY + 1
        for state in self._states.values():
            if isinstance(state, SingleState) and not state.whole:
                often, state.misses = OFTEN * state.misses > (state.watched or len(keys)), 0
                state.watched = len(keys)
                if often:
                    state.prefetch(keys[left_out:])
                    if left_out:
                        state.misses, state.watched = 0, left_out

    def trim_caches(self) -> None:
        """Bound the memory of the caches, by their two generations. Never called while the records of a chunk are processed."""
        states = self._states.values()
        if 2 * sum(state.young_bytes() for state in states) > self.cache_bytes:
            for state in states:
                state.age()

    def write_segment(self, version: str, path: str) -> StateFile | None:
        """Write the changes of this round as a file; return None if there are none. The local store does not change."""
        faults.point("T2.before-segment", operator=self.operator, path=path)
        states = [state for state in self._states.values() if state.has_changes()]
        timers = [timer for timer in (self.event_timers, self.processing_timers) if timer.has_changes()]
        self._timerless &= not timers
        with SegmentWriter(self._files, path, compressed=self._compressed) as writer:
            for table, changed in ((STATE, states), (TIMERS, timers)):
                self._flush(writer, table, changed)
            if writer.empty:
                self._held = self._begun
                return None
            # Only now, with the file durable, may memory survive the round: a failed write must not leave traces in it.
            written = writer.finish(version=version, groups=self.groups)
            self._note_shares(written, writer)
        faults.point("T2.after-segment", operator=self.operator, path=path)
        self._held = [*self._begun, written]  # the next list tells whether the file was accepted
        return written

    def _flush(self, writer: SegmentWriter, table: int, changed: Sequence[KeyedState | TimerQueue]) -> None:
        if not changed:
            return
        changes, written = Changes(self.max_parallelism), list[Any]()
        for part in changed:
            part.flush(changes)
        for flat in changes.groups[self.groups.first : self.groups.last + 1]:
            if flat:
                writer.add(table, flat, deletes=changes.deletes)
                if table == TIMERS and self._timers is not None:
                    written += flat
                flat.clear()  # it is in the file's blocks now
        if written and self._timers is not None:
            self._timers.apply(written)

    def compact(self, files: list[StateFile], run: tuple[int, int], version_path: str) -> StateFile:
        """Merge ``files[run[0]:run[1]]`` of the list the round began with; the result replaces them.

        The whole list becomes a base, dumped from the store. Deletions stay only if older files exist.
        """
        merged = files[run[0] : run[1]]
        # Bring up the store first: then its position is after the run, and the merge does not remove that position from the
        # list. So a store never has to catch up with more than the files between two merges.
        snapshot = self._opened()
        with SegmentWriter(self._files, version_path, compressed=self._compressed) as writer:
            if run == (0, len(files)):
                self._dump(writer, snapshot)
            else:
                drop, expired = run[0] == 0, self._expired()
                merge_files(writer, self._files, merged, self.groups, drop_deletions=drop, expired=expired)
            written = writer.finish(version=_merged_version(merged), groups=_hull(merged))
            self._note_shares(written, writer)
            return written

    def end(self, *, failed: bool = False) -> None:
        """Close the round, whatever happened in it, and discard unwritten changes."""
        self._close_snapshot(hurry=failed)
        if self._held is None:
            self._forget()

    # -- errors, off the path of records --

    def refuse_access(self, where: str) -> TidegateError:
        """Return the error for an access to state or a timer without a key."""
        if self.context.key is FORKED:
            return used_in_child(where)
        if self.context.key is not NO_KEY:
            return InternalError(
                "A key in the engine's form cannot be hashed.", where=where, found=shown(self.context.key)
            )
        return StateAccessError(
            "Keyed state and timers are only available in a keyed context, while a record or a timer is processed.",
            where=where,
            found="no current key",
            cure="call key_by before this operation, and use state in the processing methods, not in open or close",
        )

    def misrouted(self, key: Any) -> InternalError:
        return InternalError(
            "A record is in a subtask that does not own its key group.",
            where=f"operator {self.operator_name!r}, key groups {self.groups.first}-{self.groups.last}",
            found=f"key {shown(visible(key))}",
        )

    # -- inside --

    def _note_shares(self, written: StateFile, writer: SegmentWriter) -> None:
        if len(writer.shares) > 1:
            self.shares[written.path] = {
                name.decode(errors="replace"): round(size) for name, size in writer.shares.items()
            }

    def _dump(self, writer: SegmentWriter, snapshot: Snapshot) -> None:
        """Write the whole snapshot in canonical form."""
        expired = self._expired() if any(state.descriptor.ttl for state in self._states.values()) else None
        for group in range(self.groups.first, self.groups.last + 1):
            flat = snapshot.group(group)
            writer.add(STATE, _without(flat, expired) if expired else flat, deletes=False)
        timers: list[bytes] = []
        found, position = snapshot.timers(b"\x00", TIMER_SLICE)
        while found:
            timers += map(timer_from_local, found)
            found, position = snapshot.timers(position, TIMER_SLICE)
        timers.sort()
        writer.add(TIMERS, [part for timer in timers for part in (timer, b"")], deletes=False)

    def _expired(self) -> Expired:
        """Return a test for expired entries, which a base drops. Entries of states that are not registered here stay."""
        expiring = {name for name, state in self._states.items() if state.descriptor.ttl is not None}
        now = self.context.time
        return lambda key, value: state_name(key) in expiring and expiry_of(value) <= now

    def _forget(self) -> None:
        self._timers = None
        for state in self._states.values():
            state.reset(keep=False)
        for timers in (self.event_timers, self.processing_timers):
            timers.reset(None)

    def _detach(self) -> None:
        self.context.slot = NO_KEY
        self.get = self.get_long = self.get_many = self.scan = _outside_round
        self.max_key = 0

    def leave_to_parent(self) -> None:
        """Give up everything open, in a forked child: it belongs to the parent. Every access then raises."""
        keep_for_ever(self._snapshot)
        keep_for_ever(self._store)
        self._snapshot = self._store = None
        self._detach()
        self.context.slot = FORKED
        self.get = self.get_long = self.get_many = self.scan = _in_child

    def _close_snapshot(self, *, hurry: bool = False) -> None:
        snapshot, self._snapshot = self._snapshot, None
        store, self._store = self._store, None
        self._detach()
        if snapshot is not None:
            snapshot.close()
        if store is not None:
            store.release(hurry=hurry)


_backends: weakref.WeakSet[KeyedBackend] = weakref.WeakSet()


def _leave_all_to_parent() -> None:
    for backend in list(_backends):
        backend.leave_to_parent()


os.register_at_fork(after_in_child=_leave_all_to_parent)


def _hull(files: list[StateFile]) -> KeyGroupRange:
    return KeyGroupRange(min(file.groups.first for file in files), max(file.groups.last for file in files))


def _merged_version(files: list[StateFile]) -> str:
    """Return the version that a merged file brings its groups to: that of its last file. After a rescale the groups of a run may
    have different versions. Then return a new one: the last file's version would be wrong for the other groups."""
    last = files[-1]
    mixed = any(file.groups != last.groups for file in files)
    return f"{last.upto}~{new_token()}" if mixed else last.upto


def _without(flat: list[Any], expired: Expired) -> list[Any]:
    kept: list[Any] = []
    for key, value in zip(flat[::2], flat[1::2], strict=True):
        if not expired(key, value):
            kept += (key, value)
    return kept


def _outside_round(_: Any) -> Any:
    raise _no_round()


def _in_child(_: Any) -> Any:
    raise used_in_child("keyed state")


def _no_round() -> InternalError:
    return InternalError("State is read outside of a round.")

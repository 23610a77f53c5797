"""Test the contract of local stores: subclass ``StoreContract`` in a test and define ``make_store``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tidegate.state.layout import (
    EVENT,
    GROUP_BYTES,
    PROCESSING,
    STATE,
    TIMERS,
    split_local_timer,
    time_bytes,
    timer_key,
    timer_to_local,
)
from tidegate.state.store import EntryBlock, LocalStore, Snapshot


def state_batch(*pairs: tuple[bytes, bytes | None]) -> EntryBlock:
    """Return a block of state entries; None deletes."""
    return EntryBlock(STATE, [part for pair in pairs for part in pair], any(value is None for _, value in pairs))


def timer_batch(*timers: tuple[int, int, bytes], delete: bool = False) -> EntryBlock:
    """Return a block of timers (domain, time, key) of group 3."""
    keys = [timer_key(3, domain, time_bytes(time), b"", key) for domain, time, key in timers]
    return EntryBlock(TIMERS, [part for key in keys for part in (key, None if delete else b"")], delete)


def read_all(snapshot: Snapshot, prefix: bytes) -> dict[bytes, bytes]:
    """Return all entries whose keys start with the prefix."""
    return dict(snapshot.scan(prefix))


def read(snapshot: Snapshot, key: bytes) -> bytes | None:
    """Return the value of a key, whatever the key's length."""
    return snapshot.get(key) if len(key) <= snapshot.max_key else snapshot.get_long(key)


def read_timers(snapshot: Snapshot, domain: int, limit: int) -> list[tuple[int, bytes]]:
    """Return all timers of a domain, read in slices."""
    found: list[tuple[int, bytes]] = []
    part, position = snapshot.timers(bytes([domain]), limit)
    while part:
        for time, namespace, key in (split_local_timer(timer) for timer in part if timer[0] == domain):
            assert namespace == b""
            found.append((time, key))
        part, position = snapshot.timers(position, limit)
    return found


class StoreContract:
    """Test a ``LocalStore``. ``make_store(path)`` is called once per test, ``reopen`` stands for another process."""

    def make_store(self, path: str) -> LocalStore:
        """Return a store at this path. A second store at the same path sees what the first one applied."""
        raise NotImplementedError

    def reopen(self, store: Any) -> LocalStore:
        """Return the store as a later process sees it, after the first process has released it."""
        raise NotImplementedError

    def meanwhile(self, store: Any) -> LocalStore:
        """Return the store as another process gets it while the first process still has it."""
        raise NotImplementedError

    def filled(self, path: Any, blocks: Sequence[EntryBlock]) -> LocalStore:
        """Return a new store at this path that holds these blocks."""
        store = self.make_store(str(path))
        assert store.apply("", blocks, "one")
        return store

    def test_a_new_store_is_empty(self, tmp_path: Any) -> None:
        snapshot = self.make_store(str(tmp_path)).snapshot()
        assert snapshot.tag == ""
        assert read_all(snapshot, b"") == {}
        assert snapshot.timers(b"\x00", 10)[0] == []

    def test_applied_batches_are_read_with_their_tag(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [state_batch((b"\x00\x01a", b"1"), (b"\x00\x01b", b"2"), (b"\x00\x02a", b""))])
        snapshot = store.snapshot()
        assert snapshot.tag == "one"
        assert [read(snapshot, key) for key in (b"\x00\x01a", b"\x00\x02a", b"\x00\x01c")] == [b"1", b"", None]
        assert read_all(snapshot, b"\x00\x01") == {b"\x00\x01a": b"1", b"\x00\x01b": b"2"}
        assert snapshot.group(2) == [b"\x00\x02a", b""]

    def test_later_entries_win_and_deletions_delete(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [state_batch((b"\x00\x01a", b"1"), (b"\x00\x01b", b"2"))])
        assert store.apply(
            "one", [state_batch((b"\x00\x01a", None), (b"\x00\x01b", b"3"), (b"\x00\x01x", None))], "two"
        )
        assert read_all(store.snapshot(), b"") == {b"\x00\x01b": b"3"}

    def test_another_tag_refuses_the_batch(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [state_batch((b"\x00\x01a", b"1"))])
        assert not store.apply("zero", [state_batch((b"\x00\x01a", b"9"))], "nine")
        assert not store.apply("zero", [], "nine", wipe=True)
        snapshot = store.snapshot()
        assert (snapshot.tag, read_all(snapshot, b"")) == ("one", {b"\x00\x01a": b"1"})

    def test_wipe_removes_everything_before_the_batch(self, tmp_path: Any) -> None:
        long = GROUP_BYTES[1] + b"L" * 700
        store = self.filled(tmp_path, [state_batch((b"\x00\x01a", b"1"), (long, b"2")), timer_batch((EVENT, 5, b"k"))])
        assert store.apply("one", [state_batch((b"\x00\x01b", b"2"))], "two", wipe=True)
        snapshot = store.snapshot()
        assert read_all(snapshot, b"") == {b"\x00\x01b": b"2"}
        assert read(snapshot, long) is None
        assert snapshot.timers(b"\x00", 10)[0] == []

    def test_a_snapshot_does_not_move(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [state_batch((b"\x00\x01a", b"1"))])
        snapshot = store.snapshot()
        other = self.meanwhile(store)
        seen = other.snapshot()
        seen.close()
        assert seen.tag in ("one", "")
        assert other.apply(seen.tag, [state_batch((b"\x00\x01a", b"2")), timer_batch((EVENT, 5, b"k"))], "two")
        assert (snapshot.tag, read(snapshot, b"\x00\x01a"), snapshot.timers(b"\x00", 1)[0]) == ("one", b"1", [])
        snapshot.close()
        store.release()
        assert read(other.snapshot(), b"\x00\x01a") == b"2"

    def test_many_are_read_at_once(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [state_batch(*((b"\x00\x01%03d" % n, b"%d" % n) for n in range(0, 300, 2)))])
        keys = [b"\x00\x01%03d" % (n * 7 % 300) for n in range(300)]
        snapshot = store.snapshot()
        assert snapshot.get_many(keys) == [snapshot.get(key) for key in keys]
        assert snapshot.get_many([]) == []

    def test_what_was_let_go_can_be_used_again(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [state_batch((b"\x00\x01a", b"1")), timer_batch((EVENT, 5, b"k"))])
        for number in range(3):
            store.release()
            store.release()
            snapshot = store.snapshot()
            assert (snapshot.tag, read(snapshot, b"\x00\x01a")) == ("one" if number == 0 else f"n{number}", b"1")
            assert len(snapshot.timers(b"\x00", 5)[0]) == 1
            snapshot.close()
            assert store.apply(snapshot.tag, [state_batch((b"\x00\x01b", b"2"))], f"n{number + 1}")

    def test_long_keys_are_whole(self, tmp_path: Any) -> None:
        prefix = GROUP_BYTES[1] + b"p" * 600
        keys = [prefix + bytes([number]) * length for number in range(3) for length in (1, 100)]
        entries = {key: b"v%d" % number for number, key in enumerate([*keys, GROUP_BYTES[1] + b"p" * 509])}
        store = self.filled(tmp_path, [state_batch(*entries.items())])
        snapshot = store.snapshot()
        assert {key: read(snapshot, key) for key in entries} == entries
        assert read_all(snapshot, GROUP_BYTES[1]) == entries
        assert read_all(snapshot, prefix) == {key: entries[key] for key in keys}
        assert read(snapshot, prefix + b"?") is None
        flat = snapshot.group(1)
        assert dict(zip(flat[::2], flat[1::2], strict=True)) == entries
        snapshot.close()
        assert store.apply("one", [state_batch((keys[0], None), (keys[1], b"new"))], "two")
        assert read_all(store.snapshot(), prefix) == {**{key: entries[key] for key in keys[1:]}, keys[1]: b"new"}

    def test_timers_come_in_the_order_of_time(self, tmp_path: Any) -> None:
        timers = [(EVENT, time, key) for time in (70, -5, 3, 2**62) for key in (b"a", b"b")]
        store = self.filled(tmp_path, [timer_batch(*timers, (PROCESSING, 1, b"p"), (EVENT, 3, b"a"))])
        snapshot = store.snapshot()
        expected = sorted((time, key) for _, time, key in timers)
        assert [read_timers(snapshot, EVENT, limit) for limit in (1, 3, 100)] == [expected] * 3
        assert read_timers(snapshot, PROCESSING, 1) == [(1, b"p")]

    def test_timers_can_be_deleted_and_looked_up(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [timer_batch((EVENT, 1, b"a"), (EVENT, 2, b"a"))])
        assert store.apply("one", [timer_batch((EVENT, 1, b"a"), (EVENT, 9, b"a"), delete=True)], "two")
        snapshot = store.snapshot()
        assert read_timers(snapshot, EVENT, 10) == [(2, b"a")]
        timer = timer_to_local(timer_key(3, EVENT, time_bytes(2), b"", b"a"))
        assert (snapshot.has_timer(timer), snapshot.has_timer(timer[:-1] + b"b")) == (True, False)

    def test_timers_with_long_keys_are_all_found_in_any_slice(self, tmp_path: Any) -> None:
        keys = [b"k" * 600 + bytes([number]) for number in range(20)]
        store = self.filled(tmp_path, [timer_batch(*((EVENT, 7, key) for key in keys), (EVENT, 8, b"z"))])
        snapshot = store.snapshot()
        for limit in (1, 2, 7, 100):
            found = read_timers(snapshot, EVENT, limit)
            assert sorted(found) == [*((7, key) for key in keys), (8, b"z")]
            assert found[-1] == (8, b"z")
        assert all(snapshot.has_timer(timer_to_local(timer_key(3, EVENT, time_bytes(7), b"", key))) for key in keys)
        snapshot.close()
        assert store.apply("one", [timer_batch(*((EVENT, 7, key) for key in keys), delete=True)], "two")
        assert read_timers(store.snapshot(), EVENT, 3) == [(8, b"z")]

    def test_another_process_sees_what_was_applied(self, tmp_path: Any) -> None:
        store = self.filled(tmp_path, [state_batch((b"\x00\x01a", b"1"))])
        snapshot = self.reopen(store).snapshot()
        assert (snapshot.tag, read_all(snapshot, b"")) == ("one", {b"\x00\x01a": b"1"})

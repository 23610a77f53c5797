"""Every state backend of the registry behind the contract of local stores; LMDB in detail."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tidegate.base.errors import ConfigurationError, StateAccessError, StorageError
from tidegate.common.options import STATE_BACKEND
from tidegate.state.lmdb_store import LmdbStore, close_removed_stores, open_lmdb
from tidegate.state.store import LocalStore
from tidegate.state.stores import STORES, opener
from tidegate.testing.store_contract import StoreContract, read_all, state_batch


class TestEveryStore(StoreContract):
    """As the backend opens them, by name."""

    @pytest.fixture(autouse=True, params=sorted(STORES))
    def _kind(self, request: pytest.FixtureRequest) -> None:
        self.open = opener(request.param)

    def make_store(self, path: str) -> LocalStore:
        self.path = path
        return self.open(path)

    def reopen(self, store: LocalStore) -> LocalStore:
        store.release()
        return self.open(self.path)

    def meanwhile(self, store: LocalStore) -> LocalStore:
        return self.open(self.path)


def test_an_unknown_backend_is_refused() -> None:
    with pytest.raises(ConfigurationError) as caught:
        opener("disk")
    assert "state.backend.type names an unknown state backend" in str(caught.value)
    assert "found: 'disk'\n  cure: use one of: hashmap, rocksdb" in str(caught.value)


def test_the_names_are_those_the_configuration_takes() -> None:
    assert {STATE_BACKEND.parse(name) for name in STORES} == set(STORES)


class TestLmdbStore(StoreContract):
    def make_store(self, path: str) -> LocalStore:
        return LmdbStore(path)

    def reopen(self, store: LmdbStore) -> LocalStore:
        store.close()
        return LmdbStore(store.path)

    def meanwhile(self, store: LmdbStore) -> LocalStore:
        return store


def test_a_path_is_opened_once_in_a_process(tmp_path: Path) -> None:
    assert open_lmdb(str(tmp_path)) is open_lmdb(str(tmp_path))


def test_a_store_removed_and_made_anew_is_opened_again(tmp_path: Path) -> None:
    path = str(tmp_path / "store")
    first = open_lmdb(path)
    assert first.apply("", [], "old")
    shutil.rmtree(path)
    second = open_lmdb(path)
    assert second is not first
    assert second.snapshot().tag == ""


def test_a_forked_child_does_not_open_it_and_leaves_its_readers_alone(tmp_path: Path) -> None:
    store = open_lmdb(str(tmp_path))
    assert store.apply("", [state_batch((b"\x00\x00a", b"1"))], "one")
    snapshot = store.snapshot()
    readers = store._env.readers()
    pid = os.fork()
    if pid == 0:  # pragma: no cover - the child
        try:
            open_lmdb(str(tmp_path))
            os._exit(1)
        except StateAccessError:
            os._exit(0)
        except BaseException:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    assert store._env.readers() == readers
    assert (snapshot.tag, len(read_all(snapshot, b""))) == ("one", 1)


LIMITED = """
import resource, sys
from tidegate.base.errors import ConfigurationError
from tidegate.state.lmdb_store import LmdbStore
resource.setrlimit(resource.RLIMIT_AS, (8 << 30, 8 << 30))
LmdbStore(sys.argv[1] + "/small", 1 << 20)
try:
    LmdbStore(sys.argv[1] + "/large")
except ConfigurationError as error:
    print(error)
"""


def test_a_map_beyond_the_limit_of_address_space_names_the_limit_and_the_cure(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", LIMITED, str(tmp_path)], check=True, capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "The address space of the worker is too small for the map of a local store."
    assert "tidegate.state.map-size is 65536 mb, and of address space 8192 mb is the limit (ulimit -v)" in done.stdout
    assert "cure: raise the limit (ulimit -v unlimited), or set tidegate.state.map-size" in done.stdout
    assert "free space" not in done.stdout


KILLED = """
import os, signal, sys
from tidegate.state.lmdb_store import LmdbStore
from tidegate.testing.store_contract import state_batch
store = LmdbStore(sys.argv[1])
store.apply("", [state_batch((b"\\x00\\x00a", b"1"))], "one")
reader = store.snapshot()
txn = store._env.begin(write=True)  # killed with the write lock in hand
txn.put(b"\\x00\\x00a", b"torn", db=store._state)
os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_process_killed_in_a_transaction_leaves_the_last_commit(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    store = LmdbStore(str(tmp_path))
    snapshot = store.snapshot()
    assert (snapshot.tag, read_all(snapshot, b"")) == ("one", {b"\x00\x00a": b"1"})
    assert store.apply("one", [], "two")


def test_a_full_map_is_a_storage_error_that_names_the_option(tmp_path: Path) -> None:
    store = LmdbStore(str(tmp_path), map_size=1 << 20)
    batch = state_batch(*((b"\x00\x00%d" % number, b"v" * 1000) for number in range(2000)))
    with pytest.raises(StorageError) as caught:
        store.apply("", [batch], "one")
    assert str(caught.value).startswith("The state of a subtask exceeds the LMDB map size of its local store.")
    assert f"where: {tmp_path}" in str(caught.value)
    assert "cure: raise tidegate.state.map-size, or the parallelism" in str(caught.value)
    snapshot = store.snapshot()
    assert (snapshot.tag, read_all(snapshot, b"")) == ("", {})


def test_a_store_that_cannot_be_opened_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(StorageError, match=r"The local state store cannot be read or written\.") as caught:
        LmdbStore(str(tmp_path))
    assert "delete the directory: it is rebuilt from the checkpoint files" in str(caught.value)


def test_stores_whose_directory_is_gone_are_let_go(tmp_path: Path) -> None:
    kept, gone = open_lmdb(str(tmp_path / "kept")), open_lmdb(str(tmp_path / "gone"))
    shutil.rmtree(tmp_path / "gone")
    close_removed_stores()
    assert open_lmdb(str(tmp_path / "kept")) is kept
    with pytest.raises(StorageError):
        gone.snapshot()
    assert open_lmdb(str(tmp_path / "gone")).snapshot().tag == ""

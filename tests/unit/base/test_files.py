"""Files: the same contract on the local file system and through fsspec, and every failure with a clear error."""

from __future__ import annotations

import errno
import os
import pickle
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fsspec.implementations.memory import MemoryFileSystem

from tidegate.base import faults
from tidegate.base.errors import ConfigurationError, CorruptFileError, InternalError, StorageError, TidegateError
from tidegate.base.files import FileHandle, Files
from tidegate.base.hashing import content_hash


class Crash(BaseException):
    """The process ends here: nobody handles it."""


@pytest.fixture(params=["path", "file", "memory"])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Files]:
    if request.param == "memory":
        yield Files("memory://files-test/job")
        files_left = Files("memory://files-test")
        files_left.delete_tree("job")
    else:
        yield Files(f"file://{tmp_path}/job" if request.param == "file" else str(tmp_path / "job"))


@pytest.fixture
def local(tmp_path: Path) -> Files:
    return Files(str(tmp_path))


@pytest.fixture
def fail_at() -> Iterator[Callable[[str, BaseException], list[str]]]:
    """Install a hook that raises at one point; gives the list of firings, so a test sees that the fault fired."""

    def install(name: str, error: BaseException) -> list[str]:
        fired: list[str] = []

        def hook(point: str, where: dict[str, Any]) -> None:
            if point == name:
                fired.append(where["path"])
                raise error

        faults.install(hook)
        return fired

    yield install
    faults.install(None)


def test_write_then_read_verified(files: Files) -> None:
    files.make_directory("shared")
    handle = files.write("shared/a/b.seg", b"content")
    assert handle == FileHandle("shared/a/b.seg", 7, content_hash(b"content"))
    assert files.read(handle) == b"content"
    assert files.read_bytes("shared/a/b.seg") == b"content"
    assert files.exists("shared/a/b.seg")
    assert files.size("shared/a/b.seg") == 7
    assert pickle.loads(pickle.dumps(files)).read(handle) == b"content"


def test_empty_file(files: Files) -> None:
    assert files.read(files.write("empty", b"")) == b""
    files.make_directory("")


@pytest.mark.parametrize("aside", [True, False])
def test_a_stream_is_durable_when_it_is_closed(files: Files, aside: bool) -> None:
    with files.create_stream("shared/a/b.seg", aside=aside) as stream:
        for part in (b"con", b"", b"tent" * 100_000):
            stream.write(part)
        assert not (aside and files.exists("shared/a/b.seg")), "it has its name only when it is complete"
        handle = stream.close()
    content = b"con" + b"tent" * 100_000
    assert handle == FileHandle("shared/a/b.seg", len(content), content_hash(content))
    assert files.read(handle) == content
    assert files.list() == ["shared/a/b.seg"]
    with files.open_stream("shared/a/b.seg") as found:
        found.seek(3)
        assert found.read(4) == b"tent"


@pytest.mark.parametrize("aside", [True, False])
def test_a_stream_that_is_not_closed_leaves_nothing(files: Files, aside: bool) -> None:
    with files.create_stream("shared/a", aside=aside) as stream:
        stream.write(b"content" * 100_000)
    assert files.list() == []


@pytest.mark.parametrize("aside", [True, False])
def test_a_stream_refuses_an_existing_file(files: Files, aside: bool) -> None:
    files.write("a", b"1")
    with pytest.raises(StorageError), files.create_stream("a", aside=aside) as stream:  # noqa: PT012 - now or at its end
        stream.write(b"2")
        stream.close()
    assert (files.read_bytes("a"), files.list()) == (b"1", ["a"])


def test_a_stream_that_cannot_be_made_durable_leaves_nothing(local: Files, fail_at: Callable[..., list[str]]) -> None:
    fired = fail_at("storage.write.opened", OSError(errno.ENOSPC, "raised by the test"))
    stream = local.create_stream("shared/a")
    stream.write(b"content")
    with pytest.raises(StorageError, match="ENOSPC"):
        stream.close()
    assert fired
    assert local.list() == []


def test_find_gives_names_and_sizes_and_leaves_out_what_is_hidden(files: Files) -> None:
    for name in ("b", "a/c", "a/.hidden", "_a/d", "a/e/f"):
        files.write(name, name.encode())
    assert list(files.find()) == [("a/c", 3), ("a/e/f", 5), ("b", 1)]
    assert list(files.find("a", hidden=True)) == [(".hidden", 9), ("c", 3), ("e/f", 5)]
    assert list(files.find("nowhere")) == []
    assert [files.is_directory(path) for path in ("a", "b", "nowhere")] == [True, False, False]
    assert [files.size_if_exists(path) for path in ("b", "nowhere")] == [1, None]


def test_messages_say_whose_files_they_are(tmp_path: Path, fail_at: Callable[..., list[str]]) -> None:
    files = pickle.loads(pickle.dumps(Files(str(tmp_path), "the directory of a file sink")))
    with pytest.raises(CorruptFileError, match=r"A file on the directory of a file sink") as missing:
        files.open_stream("a")
    assert fail_at("storage.write", OSError(errno.ENOSPC, "no")) == []
    with pytest.raises(StorageError, match=r"The directory of a file sink cannot write\.") as full:
        files.create_stream("a")
    for error in (missing, full):
        assert "checkpoint" not in str(error.value)


def test_write_refuses_an_existing_file(files: Files) -> None:
    files.write("a", b"1")
    with pytest.raises(StorageError, match="cannot write"):
        files.write("a", b"2")
    assert files.read_bytes("a") == b"1"


def test_publish_is_exclusive(files: Files) -> None:
    files.publish("chk-1/_metadata", b"one")
    with pytest.raises(FileExistsError):
        files.publish("chk-1/_metadata", b"two")
    assert files.read_bytes("chk-1/_metadata") == b"one"
    assert files.list() == ["chk-1/_metadata"]


def test_replace_overwrites(files: Files) -> None:
    files.replace("history.json", b"one")
    files.replace("history.json", b"two")
    assert files.read_bytes("history.json") == b"two"
    assert files.list() == ["history.json"]


def test_rename_refuses_to_overwrite(files: Files) -> None:
    files.write("a", b"1")
    files.write("b", b"2")
    with pytest.raises(FileExistsError):
        files.rename("a", "b")
    assert (files.read_bytes("a"), files.read_bytes("b")) == (b"1", b"2")
    files.rename("a", "sub/c")
    assert files.list() == ["b", "sub/c"]


def test_rename_of_a_missing_file_is_an_error(files: Files) -> None:
    with pytest.raises(StorageError, match="cannot rename"):
        files.rename("a", "b")


def test_list_and_names(files: Files) -> None:
    assert files.list("nowhere") == []
    assert files.list_names("nowhere") == []
    for path in ("lease/2", "lease/1", "chk-1/_metadata", "top"):
        files.write(path, b"x")
    assert files.list() == ["chk-1/_metadata", "lease/1", "lease/2", "top"]
    assert files.list("lease") == ["lease/1", "lease/2"]
    assert files.list_names("lease") == ["1", "2"]
    assert files.list_names() == ["chk-1", "lease", "top"]


def test_delete_of_what_is_missing_is_fine(files: Files) -> None:
    files.delete("a")
    files.delete_tree("d")
    files.write("d/e/a", b"x")
    files.delete("d/e/a")
    files.write("d/e/b", b"x")
    files.delete_tree("d")
    assert files.list() == []
    files.write("d/e/a", b"x")  # the directory is made again
    assert files.list() == ["d/e/a"]


def test_missing_file_says_what_was_expected(files: Files) -> None:
    with pytest.raises(CorruptFileError) as caught:
        files.read(FileHandle("shared/x", 5, "abc"))
    assert caught.value.where == files.location("shared/x")
    assert caught.value.found == "no such file; expected 5 bytes, xxh3-128 abc"
    assert "execution.state-recovery.path" in str(caught.value.cure)
    with pytest.raises(CorruptFileError, match="no such file"):
        files.read_bytes("shared/x")
    with pytest.raises(CorruptFileError, match="no such file"):
        files.size("shared/x")
    assert files.read_if_exists("shared/x") is None
    assert not files.exists("shared/x")


@pytest.mark.parametrize("damaged", [b"conten", b"contenT", b"content+", b""])
def test_short_flipped_or_longer_file_names_expected_and_found(files: Files, damaged: bytes) -> None:
    handle = files.write("a", b"content")
    files.replace("a", damaged)
    with pytest.raises(CorruptFileError) as caught:
        files.read(handle)
    found = f"{len(damaged)} bytes, xxh3-128 {content_hash(damaged)}"
    assert caught.value.found == f"{found}; expected 7 bytes, xxh3-128 {handle.hash}"


def test_paths_stay_below_the_root(files: Files) -> None:
    for path in ("../x", "a/../../x", "/etc/passwd"):
        with pytest.raises(InternalError, match="leads out of its root"):
            files.delete(path)


@pytest.mark.parametrize(
    ("code", "name", "cure"),
    [
        (errno.ENOSPC, "ENOSPC", "free some space"),
        (errno.EACCES, "EACCES", "permission"),
        (errno.EIO, "EIO", "healthy"),
    ],
)
def test_failed_write_is_typed_and_leaves_nothing(
    local: Files, fail_at: Callable[..., list[str]], code: int, name: str, cure: str
) -> None:
    fired = fail_at("storage.write.opened", OSError(code, "raised by the test"))
    with pytest.raises(StorageError) as caught:
        local.write("shared/a", b"content")
    assert fired
    assert caught.value.where == local.location("shared/a")
    assert caught.value.found == f"{name}: {os.strerror(code)}"
    assert cure in str(caught.value.cure)
    assert local.list() == []


@pytest.mark.parametrize("point", ["storage.write.opened", "storage.publish.before-link"])
def test_publish_crashed_before_the_link_shows_nothing(
    local: Files, fail_at: Callable[..., list[str]], point: str
) -> None:
    fired = fail_at(point, Crash())
    with pytest.raises(Crash):
        local.publish("chk-1/_metadata", b"one")
    assert fired
    assert not local.exists("chk-1/_metadata")
    (left,) = local.list()
    assert left.startswith("chk-1/._metadata.")
    assert left.endswith(".tmp")
    faults.install(None)
    local.publish("chk-1/_metadata", b"two")
    assert local.read_bytes("chk-1/_metadata") == b"two"


def test_publish_crashed_after_the_link_is_whole(local: Files, fail_at: Callable[..., list[str]]) -> None:
    fired = fail_at("storage.publish.after-link", Crash())
    with pytest.raises(Crash):
        local.publish("chk-1/_metadata", b"one")
    assert fired
    assert local.read_bytes("chk-1/_metadata") == b"one"


def test_replace_crashed_keeps_the_old_content(local: Files, fail_at: Callable[..., list[str]]) -> None:
    local.replace("history.json", b"old")
    assert not fail_at("storage.replace.before-rename", Crash())
    with pytest.raises(Crash):
        local.replace("history.json", b"new")
    assert local.read_bytes("history.json") == b"old"


def test_rename_crashed_between_its_two_steps_finishes_when_repeated(local: Files) -> None:
    local.write("a", b"1")
    os.link(local.location("a"), local.location("b"))  # what a crash between link and unlink leaves
    local.rename("a", "b")
    assert local.list() == ["b"]


def test_torn_write_reported_as_success_is_found_when_read(local: Files) -> None:
    def tear(point: str, where: dict[str, Any]) -> None:
        if point == "storage.written":
            os.truncate(where["path"], 3)

    faults.install(tear)
    try:
        handle = local.write("a", b"content")
    finally:
        faults.install(None)
    with pytest.raises(CorruptFileError, match=r"3 bytes, .* expected 7 bytes"):
        local.read(handle)


def test_check_writable_makes_the_directory_and_leaves_nothing(files: Files) -> None:
    files.check_writable()
    assert files.list() == []


def test_check_writable_below_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(ConfigurationError) as caught:
        Files(str(tmp_path / "file" / "job")).check_writable()
    assert caught.value.where == str(tmp_path / "file" / "job")
    assert caught.value.found == "ENOTDIR: Not a directory"
    assert "execution.checkpointing.dir" in str(caught.value.cure)


@pytest.mark.parametrize(
    ("error", "kind"), [(ConnectionError("away"), StorageError), (PermissionError("no"), ConfigurationError)]
)
def test_check_writable_of_storage_that_does_not_answer_is_an_outage(
    fail_at: Callable[..., list[str]], error: OSError, kind: type[TidegateError]
) -> None:
    """A restart may help against it, and against a wrong directory none does."""
    fired = fail_at("storage.write", error)
    with pytest.raises(kind) as caught:
        Files("memory://bucket/job").check_writable()
    assert fired and type(caught.value) is kind


def test_check_writable_without_permission(local: Files, fail_at: Callable[..., list[str]]) -> None:
    fired = fail_at("storage.write", PermissionError(errno.EACCES, "no"))
    with pytest.raises(ConfigurationError, match="EACCES: Permission denied"):
        local.check_writable()
    assert fired


def test_unknown_protocol_and_empty_root() -> None:
    with pytest.raises(ConfigurationError, match="No installed package serves"):
        Files("nosuch://bucket/dir")
    with pytest.raises(ConfigurationError, match="has no name"):
        Files(" ")


def test_file_systems_without_hard_links(local: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(source: str, target: str) -> None:
        raise OSError(errno.EPERM, "no links here")

    monkeypatch.setattr(os, "link", refuse)
    local.publish("a", b"1")
    with pytest.raises(FileExistsError):
        local.publish("a", b"2")
    assert local.read_bytes("a") == b"1"
    assert local.list() == ["a"]


def test_hdfs_without_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdfs_native", None)
    with pytest.raises(ConfigurationError) as error:
        Files("hdfs://somewhere:8020/checkpoints")
    assert error.value.rule == "The package hdfs-native, which HDFS needs, is not installed."
    assert error.value.cure == "run: pip install 'tidegate[hdfs]', on this host and on the workers"


def test_what_a_server_in_java_says_is_shown_without_its_stack(fail_at: Any, local: Files) -> None:
    fail_at("storage.write", OSError("RPCError: no data node\n\tat org.apache.hadoop.A(A.java:1)\n\tat B"))
    with pytest.raises(StorageError) as error:
        local.write("a", b"")
    assert error.value.found == "OSError: RPCError: no data node"


def test_directories_are_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each is a call of storage. One whose tree was deleted is made again, and no other."""
    files, made = Files("memory://files-made/job"), []
    makedirs = MemoryFileSystem.makedirs

    def noted(system: MemoryFileSystem, path: str, exist_ok: bool = False) -> None:
        made.append(path.rpartition("/")[2])
        makedirs(system, path, exist_ok)

    monkeypatch.setattr(MemoryFileSystem, "makedirs", noted)
    for number in range(3):
        files.publish(f"chk-{number}/_metadata", b"m")
        files.replace("lease/live", b"l")
        files.write(f"shared/{number}", b"s")
        files.delete_tree(f"chk-{number}")
    files.publish("chk-2/_metadata", b"m")
    assert made == ["chk-0", "lease", "shared", "chk-1", "chk-2", "chk-2"]
    files.delete_tree("")
    files.replace("lease/live", b"l")
    assert made[-1] == "lease"
    files.delete_tree("")

"""Directories of one user in places where every user may create names: what others put there is neither used nor deleted.

The tests with a second user need root, to be both. The victim has no name in the system's list of users.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tidegate.base import private_dirs
from tidegate.base.errors import ConfigurationError, DependencyError, StorageError
from tidegate.base.private_dirs import existing_homes, private_home, remove_below
from tidegate.datastream import cached_stream
from tidegate.spark import bundle
from tidegate.state import local_dir

VICTIM, ATTACKER = 54321, 54322
NAME = f"tidegate-local-{VICTIM}"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can act as two users")


@contextmanager
def acting_as(user: int) -> Iterator[None]:
    os.setegid(user)
    os.seteuid(user)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)


@pytest.fixture
def shared() -> Iterator[Path]:
    """As ``/tmp``: everybody may create names, and remove only his own."""
    place = Path(tempfile.mkdtemp())
    place.chmod(0o1777)
    yield place
    shutil.rmtree(place)


@pytest.fixture
def documents() -> Iterator[Path]:
    """What the victim does not want to lose."""
    place = Path(tempfile.mkdtemp())
    (place / "thesis").mkdir()
    (place / "thesis" / "chapter").write_text("years of work")
    for path in (place, *place.rglob("*")):
        os.chown(path, VICTIM, VICTIM)
    yield place
    shutil.rmtree(place)


def mode(path: str | Path) -> int:
    return stat.S_IMODE(os.lstat(path).st_mode)


# -- one user ----------------------------------------------------------------------------------------------------------


def test_a_home_is_made_once_for_this_user_alone(tmp_path: Path) -> None:
    home = private_home(f"{tmp_path}/not/there/yet")
    assert home == f"{tmp_path}/not/there/yet/tidegate-local-{os.geteuid()}"
    assert mode(home) == 0o700
    assert private_home(f"{tmp_path}/not/there/yet") == home
    assert existing_homes(f"{tmp_path}/not/there/yet") == [home]
    assert existing_homes(f"{tmp_path}/missing") == []


def test_a_home_that_others_can_read_is_closed_to_them(tmp_path: Path) -> None:
    os.mkdir(tmp_path / f"tidegate-local-{os.geteuid()}", 0o755)
    assert mode(private_home(str(tmp_path))) == 0o700


@pytest.mark.parametrize("what", ["a link", "a file", "a directory others may write to"])
def test_a_name_that_is_taken_gives_a_random_one_that_is_found_again(
    tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture
) -> None:
    own, elsewhere = tmp_path / f"tidegate-local-{os.geteuid()}", tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if what == "a link":
        own.symlink_to(elsewhere)
    elif what == "a file":
        own.write_text("")
    else:
        own.mkdir()
        own.chmod(0o770)
    with caplog.at_level(logging.WARNING):
        home = private_home(str(tmp_path))
    assert home.startswith(f"{own}-") and mode(home) == 0o700
    assert private_home(str(tmp_path)) == home
    assert existing_homes(str(tmp_path)) == [home]
    assert f"{own} is not used:" in caplog.text and f"{home} is used instead" in caplog.text
    assert f"Remove {own} if it should not be there" in caplog.text


def test_a_root_that_cannot_be_written_is_named_with_its_cure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError) as caught:
        private_home(f"{tmp_path}/file")
    assert caught.value.where == f"{tmp_path}/file/tidegate-local-{os.geteuid()}"
    assert f"instead of {tmp_path}/file, set tidegate.state.local-dir" in str(caught.value)


def test_a_file_system_without_modes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(private_dirs, "_OTHERS_WRITE", 0o700)  # as where every directory is everybody's
    with pytest.raises(ConfigurationError) as caught:
        private_home(str(tmp_path))
    assert str(caught.value).startswith("Another user could replace the working directory.")
    assert "others may write there (mode 700)" in str(caught.value)
    assert os.listdir(tmp_path) == [f"tidegate-local-{os.geteuid()}"], "no more names with every try"


def test_deletion_follows_no_link(tmp_path: Path) -> None:
    for name in ("first", "second/inside", "home"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "second" / "inside" / "file").write_text("kept")
    (tmp_path / "link").symlink_to(tmp_path / "second")
    (tmp_path / "home" / "link").symlink_to(tmp_path / "second")
    (tmp_path / "home" / "deep").mkdir()
    (tmp_path / "home" / "deep" / "link").symlink_to(tmp_path / "second")
    os.link(tmp_path / "second" / "inside" / "file", tmp_path / "home" / "deep" / "hard")
    remove_below(str(tmp_path / "link"), "inside")
    remove_below(str(tmp_path / "home"), "link", "inside")
    remove_below(str(tmp_path / "home"), "link")
    remove_below(str(tmp_path / "home"), "deep")
    remove_below(str(tmp_path / "home"), "missing", "more")
    assert (tmp_path / "second" / "inside" / "file").read_text() == "kept"
    assert os.listdir(tmp_path / "home") == ["link"]


# -- two users ---------------------------------------------------------------------------------------------------------


@as_root
def test_a_link_of_another_user_leads_nowhere(shared: Path, documents: Path) -> None:
    with acting_as(ATTACKER):
        (shared / NAME).symlink_to(documents)
    with acting_as(VICTIM):
        path = local_dir.store_path(str(shared), "job", "operator", 0)
        local_dir.remove_job(str(shared), "job")
    assert path.startswith(f"{shared}/{NAME}-")
    assert (documents / "thesis" / "chapter").read_text() == "years of work"
    assert os.listdir(documents) == ["thesis"], "nothing was made there either"


@as_root
def test_a_link_below_a_directory_of_another_user_leads_nowhere(shared: Path, documents: Path) -> None:
    """The whole path to a store is theirs, with the names that ours would have."""
    with acting_as(VICTIM):
        boot = Path(local_dir.host_dir(str(shared))).name
    shutil.rmtree(shared / NAME)
    with acting_as(ATTACKER):
        (shared / NAME / boot / "stores").mkdir(parents=True)
        (shared / NAME / boot / "stores" / "job").symlink_to(documents)
        (shared / NAME).chmod(0o777)
    with acting_as(VICTIM):
        path = local_dir.store_path(str(shared), "job", "thesis", 0)
        local_dir.remove_job(str(shared), "job")
    assert path.startswith(f"{shared}/{NAME}-")
    assert [str(p.relative_to(documents)) for p in documents.rglob("*")] == ["thesis", "thesis/chapter"]


@as_root
def test_root_itself_uses_no_directory_of_another_user(shared: Path, documents: Path) -> None:
    """Root may open and write what belongs to anybody: the owner is what counts."""
    with acting_as(ATTACKER):
        (shared / "tidegate-local-0").mkdir(mode=0o700)
        (shared / "tidegate-local-0-first").symlink_to(documents)
        (shared / "tidegate-local-0-second").mkdir(mode=0o700)
    path = local_dir.store_path(str(shared), "job", "operator", 0)
    home = Path(path).relative_to(shared).parts[0]
    assert home.startswith("tidegate-local-0-") and home not in ("tidegate-local-0-first", "tidegate-local-0-second")
    assert os.lstat(shared / home).st_uid == 0
    assert os.listdir(documents) == ["thesis"]


@as_root
@pytest.mark.parametrize("planted", ["directory", "link"])
def test_a_root_that_another_user_has_planted_is_refused(shared: Path, documents: Path, planted: str) -> None:
    """A driver may name a directory that a host lacks; there anybody may have made it first."""
    with acting_as(ATTACKER):
        if planted == "link":
            (shared / "scratch").symlink_to(documents)
        else:
            (shared / "scratch" / "deep").mkdir(parents=True)
            (shared / "scratch" / "deep").chmod(0o777)
    for root in (shared / "scratch", shared / "scratch" / "deep"):
        with acting_as(VICTIM), pytest.raises(ConfigurationError) as caught:
            local_dir.store_path(str(root), "job", "operator", 0)
        assert caught.value.where == f"{shared}/scratch"
        assert caught.value.found == f"it belongs to user {ATTACKER}, and every user may create names in {shared}"
        assert "tidegate.state.local-dir" in str(caught.value)


@as_root
def test_workers_import_no_code_that_another_user_has_put_there(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with acting_as(ATTACKER):
        (shared / f"tidegate-dependencies-{VICTIM}").mkdir()
        (shared / f"tidegate-dependencies-{VICTIM}").chmod(0o777)
    with acting_as(VICTIM):
        home = bundle.home()
        assert bundle.home() == home
    assert home.startswith(f"{shared}/tidegate-dependencies-{VICTIM}-")
    assert (os.lstat(home).st_uid, mode(home)) == (VICTIM, 0o700)


@as_root
def test_dependencies_without_a_safe_place_are_refused(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with acting_as(ATTACKER):
        (shared / "theirs").mkdir()
    monkeypatch.setattr(tempfile, "tempdir", f"{shared}/theirs")
    with acting_as(VICTIM), pytest.raises(DependencyError) as caught:
        bundle.home()
    assert caught.value.where == f"{shared}/theirs"
    assert caught.value.cure == "set TMPDIR of the workers to a directory that only this user may write to"


@as_root
def test_what_a_program_caches_is_for_its_user_alone(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(shared))
    with acting_as(VICTIM):
        directory = cached_stream._directory(None)
        os.makedirs(directory)
    assert mode(shared / NAME) == 0o700
    assert directory.startswith(f"{shared}/{NAME}/cache-")

"""Zip files of strangers: nothing outside of the target is touched, and no disk is filled."""

from __future__ import annotations

import shutil
import stat
import zipfile
from pathlib import Path

import pytest

from tidegate.base.errors import DependencyError
from tidegate.spark import bundle
from tidegate.spark.bundle import unpack_zip

RULE = "An entry of the archive is no file or directory below the directory it is unpacked into"


def zip_of(place: Path, *entries: tuple[str, int, bytes]) -> Path:
    """``entries``: name, mode with the kind of file, content."""
    with zipfile.ZipFile(place / "a.zip", "w", zipfile.ZIP_DEFLATED) as zipped:
        for name, mode, content in entries:
            entry = zipfile.ZipInfo("x")
            entry.filename, entry.external_attr, entry.compress_type = name, mode << 16, zipfile.ZIP_DEFLATED
            zipped.writestr(entry, content)
    return place / "a.zip"


@pytest.mark.parametrize("name", ["../victim", "ok/../../victim", "{root}/victim", "..\\victim", "a\\b"])
def test_entry_that_leads_outside_is_refused_and_changes_nothing_there(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.write_text("mine")
    victim.chmod(0o600)
    hostile = name.format(root=tmp_path)
    archive = zip_of(tmp_path, ("first", 0o644, b"1"), (hostile, stat.S_IFREG | 0o777, b"theirs"))
    with pytest.raises(DependencyError) as raised:
        unpack_zip(archive, tmp_path / "target")
    assert str(raised.value).startswith(f"{RULE}\n  where: archive 'target'\n  found: entry {hostile!r}: ")
    assert stat.S_IMODE(victim.stat().st_mode) == 0o600 and victim.read_text() == "mine"
    assert not (tmp_path / "target").exists(), "nothing is written before all entries are checked"


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFBLK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK])
def test_links_and_devices_are_refused_with_a_sentence(tmp_path: Path, kind: int) -> None:
    with pytest.raises(DependencyError) as raised:
        unpack_zip(zip_of(tmp_path, ("odd", kind | 0o777, b"/etc/passwd")), tmp_path / "target")
    assert str(raised.value) == (
        f"{RULE}\n  where: archive 'target'\n  found: entry 'odd': a link or a device\n"
        "  cure: replace links by their targets: 'zip -r a.zip a' without -y"
    )


def test_modes_apply_to_what_was_unpacked_without_setuid_or_write_for_others(tmp_path: Path) -> None:
    archive = zip_of(tmp_path, ("./bin/tool", stat.S_IFREG | 0o6777, b"#!"), ("plain", 0, b""), ("d/", 0o40000, b""))
    unpack_zip(archive, tmp_path / "target")
    assert stat.S_IMODE((tmp_path / "target/bin/tool").stat().st_mode) == 0o755
    assert (tmp_path / "target/plain").exists() and (tmp_path / "target/d").is_dir()


def test_archive_that_unpacks_to_too_much_is_refused_before_anything_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = zip_of(tmp_path, *((f"{n}", 0o644, bytes(1 << 20)) for n in range(4)))
    assert archive.stat().st_size < 10_000
    monkeypatch.setattr(bundle, "MOST_BYTES", 3 << 20)
    with pytest.raises(DependencyError, match=r"GiB unpacked\n.*\n  found: 4 entries, 4,194,304 bytes\n  cure: split"):
        unpack_zip(archive, tmp_path / "target")
    monkeypatch.undo()
    monkeypatch.setattr(bundle, "MOST_ENTRIES", 3)
    with pytest.raises(DependencyError, match="more than 3 entries"):
        unpack_zip(archive, tmp_path / "target")
    monkeypatch.undo()
    unpack_zip(archive, tmp_path / "target")
    assert len(list((tmp_path / "target").iterdir())) == 4


def test_archive_larger_than_the_free_space_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=10)
    monkeypatch.setattr(shutil, "disk_usage", lambda place: usage)
    with pytest.raises(DependencyError, match=r"does not fit on the disk that it is unpacked on\n.*\n.*10 bytes free"):
        unpack_zip(zip_of(tmp_path, ("a", 0o644, bytes(11))), tmp_path / "target")


def test_entry_that_declares_less_than_it_holds_writes_no_more_than_declared(tmp_path: Path) -> None:
    archive = zip_of(tmp_path, ("bomb", 0o644, bytes(1 << 20)))
    data = bytearray(archive.read_bytes())
    directory = data.index(b"PK\1\2")
    data[directory + 24 : directory + 28] = (100).to_bytes(4, "little")
    archive.write_bytes(data)
    with pytest.raises(DependencyError, match="The archive is not a zip file"):  # the checksum differs
        unpack_zip(archive, tmp_path / "target")
    assert sum(file.stat().st_size for file in (tmp_path / "target").rglob("*")) <= 100


def test_damaged_or_contradictory_archive_is_an_error_of_the_job(tmp_path: Path) -> None:
    with pytest.raises(DependencyError, match="The archive cannot be unpacked"):
        unpack_zip(zip_of(tmp_path, ("a", 0o644, b"file"), ("a/b", 0o644, b"below it")), tmp_path / "target")

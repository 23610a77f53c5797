"""The bundle: made of everything a job depends on, unpacked once a host, requirements installed from a directory."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import pytest

from tidegate.base.errors import DependencyError
from tidegate.common.dependencies import CachedFile, Dependencies
from tidegate.spark import bundle as bundles
from tidegate.spark.bundle import make_bundle, unpacked


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "gettempdir", lambda: str(tmp_path))


def wheel(directory: Path, name: str, text: str) -> None:
    """A wheel with one module."""
    directory.mkdir(exist_ok=True)
    with zipfile.ZipFile(directory / f"{name}-1.0-py3-none-any.whl", "w") as zipped:
        zipped.writestr(f"{name}.py", text)
        zipped.writestr(f"{name}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        zipped.writestr(f"{name}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        zipped.writestr(f"{name}-1.0.dist-info/RECORD", "")


def files(root: Path) -> Dependencies:
    (root / "one.py").write_text("value = 'one'\n")
    (root / "folder").mkdir()
    (root / "folder" / "two.py").write_text("value = 'two'\n")
    (root / "package").mkdir()
    (root / "package" / "__init__.py").write_text("value = 'package'\n")
    with zipfile.ZipFile(root / "zipped.zip", "w") as zipped:
        zipped.writestr("three.py", "value = 'three'\n")
    with zipfile.ZipFile(root / "archive.zip", "w") as zipped:
        entry = zipfile.ZipInfo("bin/tool")
        entry.external_attr = 0o755 << 16
        zipped.writestr(entry, "#!/bin/sh\necho tool\n")
        zipped.writestr("data/words.txt", "tide\n")
    (root / "words.txt").write_text("gate\n")
    (root / "script.sh").write_text("#!/bin/sh\necho script\n")
    paths = tuple(str(root / name) for name in ("one.py", "folder", "package", "zipped.zip"))
    cached = (
        CachedFile("words", str(root / "words.txt")),
        CachedFile("script", str(root / "script.sh"), True),
        CachedFile("all", str(root / "folder")),
    )
    return Dependencies(paths, ((str(root / "archive.zip"), "env"),), cached_files=cached)


def test_everything_arrives_where_functions_look_for_it(tmp_path: Path) -> None:
    (tmp_path / "beside.py").write_text("value = 'beside'\n")
    (tmp_path / "in").mkdir()
    made = make_bundle(files(tmp_path / "in"), {"sub/beside.py": tmp_path / "beside.py"}, str(tmp_path))
    found = unpacked(str(made))
    program = "import one, two, package, three, sub.beside as b; print(one.value, two.value, package.value, three.value, b.value)"
    code = f"import sys; sys.path[:0] = {list(found.python_path)!r}; {program}; print(open('env/data/words.txt').read(), end='')"
    printed = subprocess.check_output([sys.executable, "-c", code], text=True, cwd=found.work)
    assert printed == "one two package three beside\ntide\n"
    assert Path(found.cached["words"]).read_text() == "gate\n"
    assert Path(found.cached["all"], "two.py").exists()
    assert subprocess.check_output([found.cached["script"]], text=True) == "script\n"
    assert subprocess.check_output([f"{found.work}/env/bin/tool"], text=True) == "tool\n"


def test_the_same_content_has_the_same_name_and_is_unpacked_once(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    dependencies = files(tmp_path / "in")
    first = make_bundle(dependencies, {}, str(tmp_path))
    found = unpacked(str(first))
    Path(found.cached["words"]).write_text("kept")
    (tmp_path / "in" / "one.py").touch()  # another time, the same content
    assert make_bundle(dependencies, {}, str(tmp_path)).name == first.name
    assert Path(unpacked(str(first)).cached["words"]).read_text() == "kept"
    (tmp_path / "in" / "one.py").write_text("value = 'changed'\n")
    assert make_bundle(dependencies, {}, str(tmp_path)).name != first.name


def test_one_that_was_left_half_unpacked_is_unpacked_again(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    made = make_bundle(files(tmp_path / "in"), {}, str(tmp_path))
    found = unpacked(str(made))
    [ready] = (tmp_path / Path(bundles.home()).name).glob("*/.ready")
    ready.unlink()
    Path(found.cached["words"]).unlink()
    assert Path(unpacked(str(made)).cached["words"]).read_text() == "gate\n"


def test_what_nobody_has_used_for_long_goes_with_the_next_that_is_unpacked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But not what a process still uses, however long ago it began to."""

    def bundle_of(text: str) -> str:
        (tmp_path / "one.py").write_text(text)
        return str(make_bundle(Dependencies((str(tmp_path / "one.py"),)), {}, str(tmp_path)))

    def left() -> int:
        return len(list(Path(bundles.home()).glob("*/.ready")))

    def grow_old() -> None:
        for ready in Path(bundles.home()).glob("*/.ready"):
            os.utime(ready, (1, 1))

    other = bundle_of("value = 2")
    program = "import sys, tempfile; tempfile.tempdir = sys.argv[1]; from tidegate.spark.bundle import unpacked"
    waits = f"{program}; unpacked(sys.argv[2]); print('unpacked', flush=True); sys.stdin.read()"
    command = [sys.executable, "-c", waits, str(tmp_path), other]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as user:
        assert user.stdout is not None and user.stdin is not None
        assert user.stdout.readline() == "unpacked\n"
        unpacked(bundle_of("value = 1"))
        grow_old()
        unpacked(bundle_of("value = 3"))
        assert left() == 3, "two are in use here, one there"
        user.stdin.close()
    grow_old()
    unpacked(bundle_of("value = 4"))
    assert left() == 3
    for used in bundles._used.values():  # this process goes
        used.close()
    bundles._used.clear()
    unpacked(bundle_of("value = 5"))
    assert left() == 2, "the fourth is new, the fifth is this"


def test_requirements_are_installed_from_a_directory_of_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel(tmp_path / "packages", "tidegate_test_needed", "value = 42\n")
    (tmp_path / "requirements.txt").write_text("tidegate-test-needed==1.0\n")
    wanted = Dependencies(requirements=str(tmp_path / "requirements.txt"), packages=str(tmp_path / "packages"))
    found = unpacked(str(make_bundle(wanted, {}, str(tmp_path))))
    monkeypatch.setattr(sys, "path", [*found.python_path, *sys.path])
    import tidegate_test_needed  # type: ignore[import-not-found]

    assert tidegate_test_needed.value == 42


def test_requirements_that_cannot_be_installed_are_named(tmp_path: Path) -> None:
    (tmp_path / "packages").mkdir()
    (tmp_path / "requirements.txt").write_text("tidegate-test-gone==1.0\n")
    wanted = Dependencies(requirements=str(tmp_path / "requirements.txt"), packages=str(tmp_path / "packages"))
    made = make_bundle(wanted, {}, str(tmp_path))
    for _ in range(2):  # what failed is tried again
        with pytest.raises(DependencyError) as raised:
            unpacked(str(made))
        message = str(raised.value)
        assert message.startswith("The requirements of the job cannot be installed on this host\n  where: host ")
        assert "No matching distribution found for tidegate-test-gone==1.0" in message
        assert "pip download -d directory -r file" in message


def test_an_archive_that_is_no_zip_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.tar").write_text("no zip")
    made = make_bundle(Dependencies(archives=((str(tmp_path / "a.tar"), "a.tar"),)), {}, str(tmp_path))
    with pytest.raises(DependencyError) as raised:
        unpacked(str(made))
    assert str(raised.value) == (
        "The archive is not a zip file\n  where: archive 'a.tar'\n  found: File is not a zip file\n"
        "  cure: make it with: zip -r a.zip a"
    )

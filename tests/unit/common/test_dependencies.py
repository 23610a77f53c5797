"""What a program needs in the workers: from methods and keys to one description, and every mistake in it named."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.programs import configuration_of
from tidegate.base.errors import ArgumentTypeError, ConfigurationError, ProgramError
from tidegate.common import Configuration
from tidegate.common.configuration import effective
from tidegate.common.dependencies import CachedFile, Dependencies
from tidegate.datastream import StreamExecutionEnvironment


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name in ("a.py", "b.py", "x.zip", "requirements.txt", "data"):
        (tmp_path / name).touch()
    (tmp_path / "packages").mkdir()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_methods_and_keys_say_the_same(files: Path) -> None:
    env = StreamExecutionEnvironment()
    env.add_python_file("a.py")
    env.add_python_file("b.py")
    env.add_python_archive("x.zip")
    env.add_python_archive("x.zip", "other")
    env.set_python_requirements("requirements.txt", "packages")
    env.register_cached_file("data", "words", True)
    env.register_cached_file("a.py", "source")
    (os.makedirs("elsewhere"), os.chdir("elsewhere"))
    found = Dependencies.of(effective(configuration_of(env)))
    assert found == Dependencies(
        (f"{files}/b.py", f"{files}/a.py"),
        ((f"{files}/x.zip", "x.zip"), (f"{files}/x.zip", "other")),
        f"{files}/requirements.txt",
        f"{files}/packages",
        (CachedFile("words", f"{files}/data", True), CachedFile("source", f"{files}/a.py")),
    )
    os.chdir(files)
    keys = {
        "python.files": "b.py,a.py",
        "python.archives": "x.zip,x.zip#other",
        "python.requirements": "requirements.txt#packages",
        "pipeline.cached-files": "name:words,path:data,executable:true;name:source,path:'a.py'",
    }
    by_keys = Dependencies.of(effective(Configuration.from_dict(keys)))
    assert (by_keys.python_files, by_keys.archives) == (("b.py", "a.py"), (("x.zip", "x.zip"), ("x.zip", "other")))
    assert (by_keys.requirements, by_keys.packages) == ("requirements.txt", "packages")
    assert by_keys.cached_files == (CachedFile("words", "data", True), CachedFile("source", "a.py"))
    assert not Dependencies.of(effective(Configuration()))


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        (
            "python.files",
            "gone.py",
            "'python.files' names a file that does not exist\n  found: no file or directory gone.py\n"
            "  cure: correct the path; a relative path starts in the directory in which the program is started",
        ),
        ("python.requirements", "requirements.txt#gone", "found: no file or directory gone"),
        (
            "python.archives",
            "x.zip#../up",
            "The target directory of an archive leads out of the functions' working directory\n"
            "  found: 'x.zip#../up'\n  cure: use a plain name",
        ),
        ("python.archives", "x.zip,x.zip", "Two archives of a job have the same name\n  found: x.zip"),
        ("pipeline.cached-files", "path:data", "'pipeline.cached-files' has an invalid entry\n  found: 'path:data'"),
        ("pipeline.cached-files", "words", "'pipeline.cached-files' has an invalid entry\n  found: 'words'"),
    ],
)
@pytest.mark.usefixtures("files")
def test_what_is_wrong_is_refused_before_anything_starts(key: str, value: str, message: str) -> None:
    env = StreamExecutionEnvironment(Configuration.from_dict({key: value}))
    env.from_collection([1]).print()
    with pytest.raises(ConfigurationError) as raised:
        env.execute()
    assert message in str(raised.value)


@pytest.mark.usefixtures("files")
def test_wrong_arguments_are_named() -> None:
    env = StreamExecutionEnvironment()
    with pytest.raises(ArgumentTypeError, match="add_python_file takes a non-empty text"):
        env.add_python_file(Path("a.py"))  # type: ignore[arg-type]
    with pytest.raises(
        ProgramError, match=r"add_python_file takes a path without ',' and '#'\n  found: 'a#b'\n  cure: rename the file"
    ):
        env.add_python_file("a#b")
    with pytest.raises(ProgramError, match="The name of a cached file contains ',', ';' or ':'\n  found: 'a:b'"):
        env.register_cached_file("data", "a:b")
    env.register_cached_file("data", "words")
    with pytest.raises(ProgramError, match="Two cached files have the same name\n  found: a second 'words'"):
        env.register_cached_file("a.py", "words")

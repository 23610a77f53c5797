"""A user without an account, without a home directory, or with one that cannot be written."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from tidegate.base.errors import ConfigurationError
from tidegate.base.files import Files
from tidegate.base.private_dirs import has_account, user_name
from tidegate.control.registry import home


@pytest.fixture(params=["unset", "/nonexistent", "/proc/self"])
def _homeless(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """In a process of a user whom the system does not know. root may write anywhere, so access is asked as that user."""

    def unknown(uid: int) -> pwd.struct_passwd:
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    monkeypatch.setattr(os, "access", lambda place, mode: not str(place).startswith("/proc"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.delenv("TIDEGATE_HOME", raising=False)
    monkeypatch.delenv("USER", raising=False)
    monkeypatch.setenv("HOME", request.param)
    if request.param == "unset":
        monkeypatch.delenv("HOME")


@pytest.mark.usefixtures("_homeless")
def test_registry_is_in_a_directory_of_the_user_among_temporary_files(tmp_path: Path) -> None:
    assert home() == tmp_path / f"tidegate-home-{os.geteuid()}" / ".tidegate"
    assert (tmp_path / f"tidegate-home-{os.geteuid()}").stat().st_mode & 0o777 == 0o700
    assert user_name() == str(os.geteuid()) and not has_account()


@pytest.mark.usefixtures("_homeless")
@pytest.mark.parametrize("taken", ["link", "open"])
def test_directory_that_another_user_may_have_made_is_refused(tmp_path: Path, taken: str) -> None:
    place = tmp_path / f"tidegate-home-{os.geteuid()}"
    if taken == "link":
        (tmp_path / "mine").mkdir(mode=0o700)
        place.symlink_to(tmp_path / "mine")
    else:
        place.mkdir()
        place.chmod(0o777)
    with pytest.raises(
        ConfigurationError, match=r"is not the user's alone\n  where: .*\n  found: owner .*\n  cure: set HOME"
    ):
        home()


def test_tilde_without_a_home_directory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigurationError, match="The home directory that '~' stands for is unknown"):
        Files("~no-such-user-of-ours/checkpoints")


def test_writable_home_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TIDEGATE_HOME", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    assert home() == tmp_path / ".tidegate"


JOB = """
from tidegate.common import Configuration
from tidegate.datastream import StreamExecutionEnvironment, executor
from tests.simulation.executor import SimulatedExecutor
executor.register_executor("simulated", SimulatedExecutor)
env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict({"execution.target": "simulated"}))
env.from_collection([1]).print()
env.execute("homeless")
"""


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("setpriv"), reason="needs to become another user")
def test_job_of_an_unknown_user_runs_and_is_listed() -> None:
    """The user may read what root may, since the interpreter can be in root's home, but may write nowhere."""
    place = tempfile.mkdtemp()
    os.chmod(place, 0o777)
    Path(place, "job.py").write_text(JOB)
    caps = ["--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"]
    user = ["setpriv", "--reuid", "12345", "--regid", "12345", "--clear-groups", *caps]
    clean = {key: value for key, value in os.environ.items() if key not in ("HOME", "USER", "TIDEGATE_HOME")}
    environment = clean | {"TMPDIR": place}

    def tidegate(*arguments: str) -> str:
        command = [*user, sys.executable, "-m", "tidegate.cli", *arguments]
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    assert tidegate("run", "-Dexecution.target=simulated", "job.py") == "1> 1\n"
    assert "homeless" in tidegate("list", "-a")
    assert Path(place, "tidegate-home-12345", ".tidegate", "jobs").is_dir()

"""Who may read what Tidegate writes: checkpoints are the user's alone, output follows the umask."""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tidegate.base.files import FILE_SINK, FileHandle, Files
from tidegate.base.hashing import content_hash
from tidegate.common import Configuration
from tidegate.common.serialization import Encoder
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.file_system import FileSink


@pytest.fixture(params=[0o022, 0o002, 0o077], ids=oct)
def umask(request: pytest.FixtureRequest) -> Iterator[int]:
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def modes(root: Path) -> set[str]:
    return {oct(stat.S_IMODE(path.stat().st_mode)) for path in (root, *root.rglob("*"))}


def write_everything(files: Files) -> None:
    """By every method that makes a file or directory."""
    files.write("a/written", b"1")
    with files.create_stream("b/stream") as stream:
        stream.close()
    with files.create_stream("b/direct", aside=False) as stream:
        stream.close()
    files.publish("c/published", b"1")
    files.replace("d/replaced", b"1")
    files.rename("d/replaced", "e/renamed")
    files.make_directory("f/g")


def test_files_of_a_job_are_the_users_alone_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    write_everything(Files(f"{tmp_path}/new/job"))
    assert modes(tmp_path / "new" / "job") == {"0o700", "0o600"}
    assert modes(tmp_path / "new") - {"0o700", "0o600"} <= {oct(0o777 & ~umask)}, "what is above follows the umask"
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o777 & ~umask


def test_files_of_a_sink_follow_the_umask(tmp_path: Path, umask: int) -> None:
    write_everything(Files(f"{tmp_path}/out", FILE_SINK))
    assert modes(tmp_path / "out") == {oct(0o777 & ~umask), oct(0o666 & ~umask)}


def test_existing_directory_is_closed_for_others_when_a_job_starts(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    Files(str(tmp_path)).check_writable()
    assert stat.S_IMODE(tmp_path.stat().st_mode) == 0o700


def test_group_gets_at_everything_below_a_directory_that_is_the_groups(tmp_path: Path, umask: int) -> None:
    files = Files(f"{tmp_path}/job")
    files.check_writable(group=True)
    write_everything(Files(f"{tmp_path}/job/deep/er"))  # as tasks do, which know of the directory alone
    assert modes(tmp_path / "job" / "deep" / "er") == {"0o2770", "0o660"}
    assert all((path.stat().st_mode & 0o2070) == 0o2070 for path in (tmp_path / "job", tmp_path / "job" / "deep"))


@pytest.mark.skipif(os.geteuid() != 0, reason="needs a second user")
def test_task_of_another_user_shares_a_directory_of_the_group_with_the_driver(tmp_path: Path) -> None:
    """The driver is user 23456, the task 12345, both in group 777."""
    place = tempfile.mkdtemp()
    os.chmod(place, 0o777)
    files, tasks = Files(f"{place}/job"), Files(f"{place}/job/shared")

    def run(user: int, act: Callable[[], object]) -> None:
        child = os.fork()
        if child == 0:
            os.setgroups([])
            os.setgid(777)
            os.setuid(user)
            os.umask(0o077)
            try:
                act()
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0

    run(23456, lambda: files.check_writable(group=True))
    run(12345, lambda: tasks.write("segment", b"state"))
    run(23456, lambda: files.read(FileHandle("shared/segment", 5, content_hash(b"state"))))
    run(23456, lambda: files.delete("shared/segment"))
    assert tasks.list() == []
    shutil.rmtree(place)


def test_job_leaves_private_checkpoints_and_readable_output(tmp_path: Path) -> None:
    before = os.umask(0o022)
    keys = {
        "execution.target": "simulated",
        "tidegate.job-id": "j",
        "execution.checkpointing.dir": f"{tmp_path}/all/ck",
        "execution.checkpointing.externalized-checkpoint-retention": "RETAIN_ON_CANCELLATION",
        "execution.checkpointing.interval": "1 h",
    }
    env = StreamExecutionEnvironment.get_execution_environment(Configuration.from_dict(keys)).set_parallelism(1)
    sink = FileSink.for_row_format(f"{tmp_path}/all/out", Encoder.simple_string_encoder()).build()
    env.from_collection(["a", "b"]).sink_to(sink)
    env.execute("files")
    os.umask(before)
    assert modes(tmp_path / "all" / "ck" / "j") == {"0o700", "0o600"}
    assert len(list((tmp_path / "all" / "ck" / "j").rglob("history*"))) == 1
    assert modes(tmp_path / "all" / "out") == {"0o755", "0o644"}

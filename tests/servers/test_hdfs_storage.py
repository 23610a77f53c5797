"""Checkpoint storage on HDFS: a mini cluster of Hadoop's, reached as users do, through ``hdfs://``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.servers.hadoop import address, hdfs
from tests.servers.server import Server, free_port
from tests.servers.storage_contract import SUMS, Job, StorageContract
from tidegate.base import faults
from tidegate.base.errors import ConfigurationError, StorageError, TidegateError
from tidegate.base.files import Files
from tidegate.base.hashing import new_token

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    pytest.importorskip("hdfs_native", reason="make hdfs installs it")
    with hdfs() as running:
        yield running


class TestHdfs(StorageContract):
    @pytest.fixture
    def storage(self, server: Server) -> str:
        return address(server)

    def test_a_name_is_created_once(self, files: Files) -> None:
        """Not by a look before it: the name node itself refuses."""
        system: Any = files._system
        writing = system.open_new(files.location("a"))
        with pytest.raises(FileExistsError):
            system.open_new(files.location("a"))
        writing.close()

    def test_messages_are_without_the_servers_stack(self, files: Files) -> None:
        files.write("a", b"1")
        with pytest.raises(StorageError) as error:
            files.write("a/below", b"2")
        assert "is not a directory" in str(error.value)
        assert "at org.apache" not in str(error.value)


def test_a_server_that_is_killed_and_comes_back(server: Server, tmp_path: Path) -> None:
    """The job fails with a clear error while it is away, and continues when it is there again."""
    directory = f"{address(server)}/{new_token()}"
    job = Job(directory, tmp_path)
    published: list[str] = []

    def kill(name: str, where: dict[str, Any]) -> None:
        if name == "C6.published":
            published.append(name)
            if len(published) == 2:
                server.kill()

    faults.install(kill)
    try:
        with pytest.raises(TidegateError, match="Connection refused"):
            job.master().run()
    finally:
        faults.install(None)
    server.start()
    job.master().run()
    assert job.committed() == SUMS


def test_nobody_there() -> None:
    pytest.importorskip("hdfs_native", reason="make hdfs installs it")
    with pytest.raises(ConfigurationError) as error:
        Files(f"hdfs://127.0.0.1:{free_port()}/checkpoints").check_writable()
    assert "Connection refused" in str(error.value)


def test_an_address_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("hdfs_native", reason="make hdfs installs it")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    with pytest.raises(ConfigurationError) as error:
        Files("hdfs:///checkpoints")
    assert error.value.rule == "Neither the HDFS address nor Hadoop's configuration names a name node or name service."
    assert "HADOOP_CONF_DIR" in str(error.value.cure)

"""The tutorial on deduplication, against a real server."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from tests.servers import databases
from tests.servers.server import Server
from tests.simulation.executor import TARGET
from tests.unit.docs.tutorials import FOLDER, promised, results
from tidegate.cli.script import run_script
from tidegate.common.global_configuration import set_dynamic_properties


def test_every_order_is_written_once(postgresql: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    server = databases.postgresql_url(postgresql)
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute("CREATE DATABASE tutorial")  # other tests of this server have tables of the same names
    url = server.removesuffix("postgres") + "tutorial"
    directories = {"execution.checkpointing.dir": f"{tmp_path}/checkpoints", "tidegate.state.local-dir": str(tmp_path)}
    set_dynamic_properties({"execution.target": TARGET, "restart-strategy.type": "none", **directories})
    run_script(str(FOLDER / "deduplication.py"), [url], pyflink=False)
    assert results(capsys.readouterr().out) == promised("deduplication.py")

"""The programs of the databases' pages run as they stand, but for the address: on real servers, as one program each."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.servers import databases
from tests.servers.server import Server
from tests.servers.sql_cases import Target

DOCS = Path(__file__).parents[2] / "docs"
EXPECTED: dict[str, dict[str, list[tuple[object, ...]]]] = {
    "postgresql": {
        "orders": [(1, "anna", 250), (2, "bert", 90), (3, "anna", 10), (4, "cleo", 70)],
        "customers": [("anna", 260), ("bert", 90), ("cleo", 0)],
    },
    "mariadb": {"orders": [(1, "anna", 260), (2, "bert", 90)]},
}


def blocks(page: str, language: str) -> list[str]:
    found = re.findall(rf"^```{language}\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    assert found, f"no {language} on the page"
    return found


def test_the_programs_of_a_page(target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (DOCS / f"{target.server.name}.md").read_text()
    address = re.search(r'"(\w+://shop@db\.example:\d+/shop)"', page)
    assert address is not None
    (tmp_path / "config.yaml").write_text(
        f"execution.target: simulated\nparallelism.default: 2\nexecution.checkpointing.dir: {tmp_path}/checkpoints\n"
    )
    monkeypatch.setenv("TIDEGATE_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SHOP_PASSWORD", databases.PASSWORD)
    tables = EXPECTED[target.server.name]
    try:
        for statement in "".join(blocks(page, "sql")).split(";")[:-1]:
            target.ask(statement)
        own = target.url.replace(f":{databases.PASSWORD}@", "@")
        namespace = {"__name__": "__main__"}  # functions of a program are pickled by value
        for program in blocks(page, "py"):
            exec(compile(program.replace(address[1], own), str(DOCS), "exec"), namespace)
        assert {name: target.rows(name) for name in tables} == tables
        assert target.prepared() == []
    finally:
        for name in tables:
            target.ask(f"DROP TABLE IF EXISTS {name}")


def test_the_program_of_the_page_on_jdbc(postgresql: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, page = Target(postgresql), (DOCS / "jdbc.md").read_text()
    (tmp_path / "config.yaml").write_text(
        f"execution.target: simulated\nexecution.checkpointing.dir: {tmp_path}/checkpoints\n"
    )
    monkeypatch.setenv("TIDEGATE_CONF_DIR", str(tmp_path))
    monkeypatch.setenv("SHOP_PASSWORD", databases.PASSWORD)
    [program] = blocks(page, "py")
    own = program.replace("db.example:5432/shop", f"127.0.0.1:{postgresql.port}/postgres").replace('"shop")', '"tide")')
    try:
        target.ask("".join(blocks(page, "sql")))
        exec(compile(own, "jdbc.md", "exec"), {"__name__": "__main__"})
        assert target.rows("visits") == [("home", 2), ("shop", 1)]
    finally:
        target.ask("DROP TABLE IF EXISTS visits")

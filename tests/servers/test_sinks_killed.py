"""Every sink in a job whose driver is killed (SIGKILL) at its points, one after the other; who looks reads the target itself.

Sinks of files are read all the while, too: nobody ever sees a part of a file, or one that changes.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from tests.servers import databases
from tests.servers.redis_servers import client_of, redis_server, url_of
from tests.servers.sink_job import BUCKET, COUNT, lake
from tests.servers.sql_cases import Target
from tests.unit.connectors.senders import Sender
from tidegate.testing import kill_hook

JOB = Path(__file__).with_name("sink_job.py")
DECLINED = ["K1.before-prepare@3=self", "K2.prepared@6=self"]
PLANS: dict[str, list[str]] = {
    "files": [
        *("K1.file-sink.flush@3=self", "K1.file-sink.flushed@5=self", "K2.prepared@8=self"),
        *("K3.file-sink.before-rename@6=self", "K3.file-sink.after-rename@9=self", "C6.all-committed@8=self"),
        *("K3.file-sink.before-marker@1=self", "K3.file-sink.marked@2=self", "K2.file-sink.listed@5=self"),
    ],
    "compacted": [
        *DECLINED,
        *("K3.file-sink.before-rename@3=self", "K3.file-sink.after-rename@4=self", "K3.file-sink.before-delete@2=self"),
        *("K3.file-sink.retiring@2=self", "K2.file-sink.before-delete@1=self"),
    ],
    "two-phase": [
        *("K1.two-phase.begun@3=self", "K1.two-phase.pre-commit@5=self", "K3.two-phase.before-commit@5=self"),
        *("K3.two-phase.committed@8=self", "K2.two-phase.listed@4=self", "K2.two-phase.before-abort@1=self"),
    ],
    "global": [*DECLINED, "K3.global.before-commit@3=self", "K3.global.committed@6=self"],
    "write-ahead": [
        *("K2.write-ahead.kept@3=self", "K6.write-ahead.before-send@4=self", "K6.write-ahead.sent@6=self"),
        *("K6.write-ahead.confirmed@9=self", "K2.write-ahead.listed@4=self"),
    ],
    "upsert": [*DECLINED, "T2.before-ack@12=self", "C6.published@5=self"],
    "for-each": [
        *DECLINED,
        "K3.for-each.before-commit@3=self",
        "K3.for-each.committed@5=self",
        "K2.for-each.listed@4=self",
    ],
    "delta": [
        *("K1.table.flush@3=self", "K3.table.before-commit@3=self", "K3.table.append@4=self"),
        *("K3.table.committed@5=self", "K2.table.listed@3=self"),
    ],
    "postgresql": [
        *("K1.sql.begun@3=self", "K1.sql.written@5=self", "K2.sql.prepared@7=self", "K3.sql.before-commit@5=self"),
        *("K3.sql.committed@8=self", "K3.sql.settled@6=self", "K2.sql.listed@5=self", "K2.sql.before-abort@1=self"),
    ],
    "postgresql upsert": [
        "K1.sql.begun@3=self",
        "K1.sql.written@5=self",
        "K3.sql.committed@7=self",
        "C6.published@4=self",
    ],
    "redis": [*DECLINED, "K3.redis.before-commit@4=self", "K3.redis.committed@8=self", "K2.redis.listed@4=self"],
    "redis at once": [*DECLINED, "C6.published@5=self"],
}
PLANS["iceberg"] = PLANS["delta"]
PLANS["mariadb"], PLANS["mariadb upsert"] = PLANS["postgresql"], PLANS["postgresql upsert"]
OF_FILES = ("files", "compacted", "two-phase", "global", "write-ahead", "for-each")


# -- who looks -------------------------------------------------------------------------------------------------------------


def shown(directory: Path) -> list[Path]:
    found = (directory / "out").rglob("*")
    return [path for path in found if path.is_file() and not path.name.startswith((".", "_"))]


def numbers_of(path: Path) -> list[int]:
    if path.read_bytes()[:4] == b"PAR1":
        return parquet.read_table(path)["n"].to_pylist()  # type: ignore[no-any-return]
    text = path.read_text()
    assert text.endswith("\n"), f"{path} has a part of a line"
    return [int(line) for line in text.splitlines()]


class Reader:
    """Reads all that is there, again and again, until told to stop."""

    def __init__(self, directory: Path, *, whole: bool = True) -> None:
        """``whole``: every number comes, so a bucket with a marker has all of its numbers."""
        self._directory, self._whole, self._stop = directory, whole, threading.Event()
        self._seen: dict[Path, list[int]] = {}
        self._wrong: list[str] = []
        self.looks = 0
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Reader:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
        assert self._wrong == [] and self.looks > 1

    def _run(self) -> None:
        while not (self._stop.is_set() or self._wrong):
            try:
                self._look()
            except Exception as error:
                self._wrong.append(repr(error))
            self.looks += 1

    def _look(self) -> None:
        marked = {path.parent for path in (self._directory / "out").rglob("_SUCCESS")}
        found = {path: numbers_of(path) for path in shown(self._directory)}
        for path, numbers in self._seen.items():
            assert found.get(path) == numbers, f"{path} has changed: {numbers}, {found.get(path)}"
        # A bucket that had its marker before the listing has all of its numbers in the listing
        for bucket in marked if self._whole else ():
            first = int(bucket.name[1:]) * BUCKET
            numbers = sorted(n for path in found if path.parent == bucket for n in found[path])
            assert numbers == list(range(first, first + BUCKET)), f"{bucket} had its marker before it was complete"
        self._seen = found


def look_at(kind: str, said: dict[str, Any], target: Any) -> list[int]:
    directory = Path(said["directory"])
    if kind == "delta":
        import deltalake

        path = str(directory / "out")
        is_there = deltalake.DeltaTable.is_deltatable(path)
        return deltalake.DeltaTable(path).to_pyarrow_table()["n"].to_pylist() if is_there else []  # type: ignore[no-any-return]
    if kind == "iceberg":
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog("lake", **lake(str(directory)))
        is_there = catalog.table_exists("a.numbers")
        return catalog.load_table("a.numbers").scan().to_arrow()["n"].to_pylist() if is_there else []  # type: ignore[no-any-return]
    if isinstance(target, Target):
        return [n for (n,) in target.ask(f"SELECT id FROM {said['table']}")]
    if target is not None:
        return [int(n) for n, times in target.hgetall(said["table"]).items() for _ in range(int(times))]
    return [n for path in shown(directory) for n in numbers_of(path)]


# -- the job and its drivers -----------------------------------------------------------------------------------------------


@contextmanager
def drivers() -> Iterator[Callable[..., int]]:
    command = [sys.executable, str(JOB)]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        assert parent.stdin is not None and parent.stdout is not None
        stdin, stdout = parent.stdin, parent.stdout

        def run(*how: Any) -> int:
            stdin.write(json.dumps(how) + "\n")
            stdin.flush()
            return int(stdout.readline())

        try:
            yield run
        finally:
            with suppress(ProcessLookupError):
                os.killpg(parent.pid, signal.SIGKILL)  # and a driver that hangs


def target_of(kind: str, undo: ExitStack, said: dict[str, Any]) -> Any:
    """The server, and what the job is told of it; None: files."""
    if kind.startswith("redis"):
        server = undo.enter_context(redis_server())
        said |= {"url": url_of(server), "table": "numbers"}
        return client_of(server)
    if kind.startswith(("postgresql", "mariadb")):
        target = Target(undo.enter_context(getattr(databases, kind.split(maxsplit=1)[0])()))
        said |= {
            "url": target.url,
            "table": target.new_table("id bigint" + (" PRIMARY KEY" if "upsert" in kind else "")),
        }
        return target
    return None


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", PLANS)
def test_killed_at_every_point(kind: str, tmp_path: Path) -> None:
    said: dict[str, Any] = {"directory": str(tmp_path), "kind": kind}
    plan, before = PLANS[kind], Counter[int]()
    environment = {"TIDEGATE_KILL_DIR": str(tmp_path), "TIDEGATE_KILL_PLAN": ";".join(plan)}
    codes: list[int] = []
    with ExitStack() as undo:
        target = target_of(kind, undo, said)
        run = undo.enter_context(drivers())
        if kind in OF_FILES:
            undo.enter_context(Reader(tmp_path))
        while not codes or codes[-1] != 0:
            log = tmp_path / f"log-{len(codes)}"
            codes.append(run(said, str(log), environment))
            assert codes[-1] in (0, -9) and len(codes) <= len(plan) + 1, log.read_text()[-4_000:]
            now = Counter(look_at(kind, said, target))
            assert not before - now, "what was visible has gone"
            assert set(now) <= set(range(COUNT)) and max(now.values(), default=1) == 1, "doubled, or never sent"
            before = now
        assert kill_hook.fired(tmp_path) == sorted(plan), f"not every point was passed: {codes}"
        assert before == Counter(range(COUNT))
        assert not isinstance(target, Target) or target.prepared() == []
    assert [path for path in tmp_path.glob("out/**/.*") if kind in ("files", "compacted", "two-phase")] == []


@pytest.mark.crash
@pytest.mark.slow
@pytest.mark.parametrize(
    "point", ["socket.log", "socket.logged", "K2.prepared", "C6.published", "K3.file-sink.before-rename"]
)
def test_a_socket_with_a_log(point: str, tmp_path: Path) -> None:
    """What was logged comes once, though its sender says it once only. What was not is lost: of the connection that was broken."""
    first, second = ("".join(f"{n}\n" for n in range(start, start + COUNT // 2)) for start in (0, COUNT // 2))
    environment = {"TIDEGATE_KILL_DIR": str(tmp_path), "TIDEGATE_KILL_PLAN": f"{point}@1=self"}
    with Sender(first, second, holds=1) as sender, drivers() as run, Reader(tmp_path, whole=False):
        said = {"directory": str(tmp_path), "kind": "files", "port": sender.port}
        assert run(said, str(tmp_path / "log-0"), environment) == -9
        code = run(said, str(tmp_path / "log-1"), environment)
        assert code == 0, (tmp_path / "log-1").read_text()[-4_000:]
    assert kill_hook.fired(tmp_path) == [f"{point}@1=self"]
    found = sorted(n for path in shown(tmp_path) for n in numbers_of(path))
    kept = len(found) - COUNT // 2
    assert found == [*range(kept), *range(COUNT // 2, COUNT)]
    assert (kept == 0) == (point == "socket.log")
    assert point != "socket.logged" or f"'end': {kept}}}" in (tmp_path / "fired-0").read_text()

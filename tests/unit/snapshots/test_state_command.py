"""``tidegate state``: what a user sees of a snapshot, and the exit codes of what goes wrong."""

from __future__ import annotations

import csv
import io
import json
import shutil
from pathlib import Path
from typing import Any

import pyarrow.parquet
import pytest
from typer.testing import CliRunner

from tests.unit.snapshots.snapshot_jobs import every_kind, kept, own_states, windows
from tidegate.checkpoint import envelope
from tidegate.cli.main import app
from tidegate.state_reader import SavepointReader
from tidegate.state_writer import SavepointWriter

GOLDEN = Path(__file__).parents[2] / "compat" / "golden" / "job-2"


def tidegate(*arguments: str, code: int = 0) -> str:
    result = CliRunner().invoke(app, ["state", *arguments])
    assert result.exit_code == code, result.output
    return result.output


def test_operators_states_and_sizes() -> None:
    text = tidegate(str(GOLDEN))
    assert "checkpoint 2 of job 'kept'" in text
    assert "KEYED PROCESS (uid by text, 99e04f853445a09136a3e804ef9529e0)" in text
    assert "  parallelism 2 of at most 128, keys of type STRING, 1,995 bytes in 3 files" in text
    assert "  position {'bounds': [0, 400], 'splits': [[0, 30, 200], [1, 230, 400]]}" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["seen", "keyed", "map", "LONG", "to", "STRING", "60", "1,010"] in lines
    assert ["timers", "4"] in lines
    assert "1,010" not in tidegate(str(GOLDEN), "--no-count")


def test_as_json() -> None:
    found = json.loads(tidegate(str(GOLDEN / "chk-2"), "--json"))
    by_uid = {operator["uid"]: operator for operator in found["operators"]}
    assert found["checkpoint_id"] == 2
    assert by_uid["by float"]["counts"]["count"] == {"entries": 3, "bytes": 60}
    assert by_uid["numbers"]["source"]["bounds"] == [0, 400]


def test_rows_as_a_table() -> None:
    text = tidegate(str(GOLDEN), "--operator", "by text", "--state", "count")
    assert sorted(text.splitlines()) == sorted(["key  value", "k0   16", "k1   16", "k2   14", "k3   14"])
    assert len(tidegate(str(GOLDEN), "-o", "by text", "-s", "seen", "--limit", "3").splitlines()) == 4
    assert "k1   1000000000000  event" in tidegate(str(GOLDEN), "-o", "by text", "--timers")


def test_rows_as_csv_and_json() -> None:
    rows = list(csv.DictReader(io.StringIO(tidegate(str(GOLDEN), "-o", "by text", "-s", "seen", "--csv"))))
    assert {"key": "k1", "namespace": "", "map_key": "5", "value": "5"} in rows and len(rows) == 60
    lines = tidegate(str(GOLDEN), "-o", "by float", "-s", "some", "--json").splitlines()
    assert {"key": 1.0, "namespace": None, "value": [{"value": 200}]} in [json.loads(line) for line in lines]


def test_rows_as_parquet(tmp_path: Path) -> None:
    reader = kept(every_kind, tmp_path / "jobs", parallelism=2)
    for state in reader.operator("every kind").states:
        file = tmp_path / "rows.parquet"
        tidegate(reader.address, "-o", "every kind", "-s", state.name, "--parquet", str(file))
        rows = pyarrow.parquet.read_table(file).to_pylist()
        shown = repr if state.name == "pickled" else _plain
        expected = [(row.key, row.map_key, shown(row.value)) for row in reader.read("every kind", state.name)]
        assert [(row["key"], row.get("map_key"), row["value"]) for row in rows] == expected
    windowed = kept(windows, tmp_path / "windows")
    tidegate(windowed.address, "-o", "tumbling", "-s", "window-contents", "--parquet", str(file))
    found = pyarrow.parquet.read_table(file).to_pylist()
    assert found and all(row["namespace"]["end"] - row["namespace"]["start"] == 100 for row in found)


def _plain(value: Any) -> Any:
    return {f"f{n}": part for n, part in enumerate(value)} if isinstance(value, tuple) else value


def test_states_of_operators(tmp_path: Path) -> None:
    reader = kept(own_states, tmp_path, parallelism=2)
    text = tidegate(reader.address, "-s", "rules")
    assert len(text.splitlines()) == 4 and text.startswith("map_key")
    assert tidegate(reader.address, "-s", "latest", "--csv").startswith("value\n")


# -- diff ----------------------------------------------------------------------------------------------------------------


def test_what_has_changed(tmp_path: Path) -> None:
    reader = SavepointReader(str(GOLDEN))
    rows = [row._replace(value=row.value + (row.key == "k2")) for row in reader.read("by text", "count")]
    rows = [row for row in rows if row.key != "k3"] + [rows[0]._replace(key="k9", value=1)]
    writer = SavepointWriter.from_existing(str(GOLDEN)).with_keyed_state("by text", "count", rows)
    new = writer.remove_operator("by float").write(str(tmp_path / "new"))
    text = tidegate("diff", str(GOLDEN), new)
    assert "numbers (uid numbers): no change" in text
    assert "count: 1 added, 1 removed, 1 changed, 2 the same" in text
    assert {"    + k9: 1", "    - k3: 14", "    ~ k2: 14 -> 15"} <= set(text.splitlines())
    assert "seen:" not in text.split("KEYED PROCESS (uid by float): removed")[0]
    assert "KEYED PROCESS (uid by float): removed" in text
    tidegate("diff", str(GOLDEN), new, "--exit-code", code=1)
    tidegate("diff", str(GOLDEN), str(GOLDEN), "--exit-code")
    found = {one["uid"]: one for one in json.loads(tidegate("diff", str(GOLDEN), new, "--json"))}
    [count] = [state for state in found["by text"]["states"] if state["state"] == "count"]
    assert (count["added"], count["removed"], count["changed"]) == (1, 1, 1)
    assert {
        "before": None,
        "now": {"key": "k9", "value": 1, "namespace": None, "map_key": None, "expires_ms": None},
    } in (count["examples"])


def test_what_a_job_has_done_since(tmp_path: Path) -> None:
    """Another parallelism, and states of all scopes."""
    before, now = (kept(every_kind, tmp_path / str(n), parallelism=n) for n in (1, 3))
    text = tidegate("diff", before.address, now.address)
    assert "position" in text or before.operator("numbers").source == now.operator("numbers").source
    own = [kept(own_states, tmp_path / f"own{n}", parallelism=n) for n in (1, 2)]
    assert "rules: 0 added, 0 removed" in tidegate("diff", own[0].address, own[1].address) or (
        own[0].operator("numbers").source == own[1].operator("numbers").source
    )


# -- mistakes ------------------------------------------------------------------------------------------------------------


def test_every_mistake_has_its_message_and_code(tmp_path: Path) -> None:
    assert "must be a checkpoint" in tidegate(str(tmp_path / "gone"), code=9)
    assert "there are 'Sink: Collect'" in tidegate(str(GOLDEN), "-o", "nobody", code=15)
    assert "there are 'count', 'seen', 'some'" in tidegate(str(GOLDEN), "-o", "by text", "-s", "nothing", code=15)
    assert "The operator is not clear" in tidegate(str(GOLDEN), "-s", "count", code=10)
    assert "--csv and --parquet are formats for rows" in tidegate(str(GOLDEN), "--csv", code=10)
    job = Path(shutil.copytree(GOLDEN, tmp_path / "job-2"))
    for file in (job / "shared").iterdir():
        file.write_bytes(file.read_bytes()[:-5])
    assert "shared/99e04f853445" in tidegate(str(job), code=16)
    (job / "chk-2" / "_metadata").write_bytes(envelope.seal("tidegate-metadata", 99, {}))
    assert "version 99" in tidegate(str(job / "chk-2"), code=17)


@pytest.mark.parametrize("arguments", [["--help"], ["diff", "--help"], ["show", "--help"]])
def test_help(arguments: list[str]) -> None:
    assert "snapshot" in tidegate(*arguments)

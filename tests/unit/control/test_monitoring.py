"""The board and the alert rules of the wheel: valid, and every metric in them is one that a job has."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.unit.control.flink.shown_jobs import shown_jobs
from tidegate.control.monitoring import paths
from tidegate.runtime.prometheus import prometheus_text

METRIC = re.compile(r"\btidegate_[a-z_]+")


def test_every_metric_of_board_and_rules_is_in_the_text_of_a_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEGATE_HOME", f"{tmp_path}/home")
    with shown_jobs(tmp_path) as shown:
        job = shown.jobs.get("running-job")
        assert job is not None
        view = job.handle.view()
        failed = replace(view, totals=replace(view.totals, failed_checkpoints={"EXPIRED": 1}))
        text = shown.ask("GET", "/metrics", prefix="")[1] + prometheus_text(failed)
    had = {line.split("{")[0] for line in text.splitlines() if not line.startswith("#")}
    board, rules = (path.read_text() for path in paths())
    used = {name for content in (board, rules) for name in METRIC.findall(content)}
    assert len(used) > 20 and used <= had, used - had


def test_board_has_a_query_in_every_panel_and_no_two_panels_overlap() -> None:
    board = json.loads(paths()[0].read_text())
    panels = [panel for panel in board["panels"] if panel["type"] != "row"]
    assert all(target["expr"] for panel in panels for target in panel["targets"])
    assert all('job_id=~"$job"' in target["expr"] for panel in panels for target in panel["targets"])
    cells = [
        (x, y)
        for at in (panel["gridPos"] for panel in board["panels"])
        for x in range(at["x"], at["x"] + at["w"])
        for y in range(at["y"], at["y"] + at["h"])
    ]
    assert len(cells) == len(set(cells)) and max(x for x, _ in cells) == 23


def test_rules_are_complete() -> None:
    (group,) = yaml.safe_load(paths()[1].read_text())["groups"]
    names = [rule["alert"] for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 8
    for rule in group["rules"]:
        assert rule["expr"].strip() and rule["labels"]["severity"] in ("critical", "warning")
        assert rule["annotations"].keys() == {"summary", "description"}
        assert rule["expr"].count("(") == rule["expr"].count(")")


def test_command_prints_the_paths() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tidegate.control.monitoring"], capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == [str(path) for path in paths()]
    assert all(path.is_file() for path in paths())

"""A job as HTML in a notebook: what it shows, and that nothing in it is obeyed."""

from __future__ import annotations

import re
from dataclasses import replace

from tests.simulation.executor import Simulated, SimulatedExecutor
from tidegate.common import Types
from tidegate.runtime import job_html
from tidegate.runtime.view import ExceptionView

EVIL = "<img src=x onerror=alert(1)>"


def test_a_job_shows_its_state_records_checkpoints_and_graph(simulated: Simulated) -> None:
    env = simulated(**{"execution.checkpointing.interval": "10 ms", "tidegate.round.max-records": 2})
    env.from_collection(list(range(6)), Types.LONG()).key_by(lambda n: n % 2).sum().name("summed").print()
    client = env.execute_async("numbers")
    client.get_job_execution_result().result()
    shown = client._repr_html_()
    assert "numbers" in shown and "FINISHED" in shown and "summed" in shown
    assert re.search(r"<td[^>]*>6 in \d+ rounds</td>", shown) and re.search(r"\d+ complete", shown)
    assert "<svg" in shown and "6 records" in shown and "records/s" not in shown, "an ended job has no rate"
    assert "<script" not in shown


def test_names_and_errors_are_escaped(simulated: Simulated) -> None:
    env = simulated()
    env.from_collection([1], Types.LONG()).map(lambda n: n).name(EVIL).print()
    client = env.execute_async(EVIL)
    client.get_job_execution_result().result()
    view = SimulatedExecutor.last.view()
    failed = replace(view, exceptions=(ExceptionView(0, 1, "ValueError", EVIL),), ended_ms=None)
    shown = job_html.page(failed, view.created_ms + 90_000)
    assert "<img" not in shown and shown.count("&lt;img src=x onerror=alert(1)&gt;") >= 3
    assert "1 min 30 s" in shown and "records/s" in shown and "none are taken" in shown

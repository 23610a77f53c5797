"""The notebook of the tutorials, executed from its first cell to its last in a kernel of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOK = Path(__file__).parents[2] / "examples" / "tutorials" / "first_steps.ipynb"


@pytest.mark.slow
def test_the_notebook_runs_and_shows_its_graph_its_job_and_its_state(tmp_path: Path) -> None:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)  # type: ignore[no-untyped-call]
    NotebookClient(
        notebook, timeout=240, kernel_name="python3", resources={"metadata": {"path": str(tmp_path)}}
    ).execute()
    shown = [_shown(cell) for cell in notebook.cells if cell.cell_type == "code"]
    assert "<svg" in shown[1]["text/html"] and "hash" in shown[1]["text/html"]
    assert "('be', 2)" in shown[2]["text/plain"] and "('to', 2)" in shown[2]["text/plain"]
    assert "digits" in shown[3]["text/html"] and "<svg" in shown[3]["text/html"]
    assert "FINISHED" in shown[4]["text/html"] and "complete" in shown[4]["text/html"]
    assert shown[5]["text/plain"] == str(list(range(10)))


def test_the_notebook_is_stored_without_output() -> None:
    import json

    cells: list[dict[str, Any]] = json.loads(NOTEBOOK.read_text())["cells"]
    assert [cell for cell in cells if cell.get("outputs") or cell.get("execution_count")] == []


def _shown(cell: Any) -> dict[str, str]:
    """What a notebook shows for the last expression of a cell."""
    results = [output for output in cell.outputs if output.output_type == "execute_result"]
    return dict(results[-1].data) if results else {}

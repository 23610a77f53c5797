"""Fixtures of the tests of connectors."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.connectors.frames import for_each_checkpoint
from tidegate.connectors.frames.for_each_checkpoint import kept_records


@pytest.fixture
def lists_instead_of_frames(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the function of ``for_each_checkpoint`` get the list of its records: there is no Spark."""

    def frame_of(files: list[str], type_info: Any) -> list[Any]:
        return [record for file in files for record in kept_records(file)]

    monkeypatch.setattr(for_each_checkpoint, "dataframe_of", frame_of)

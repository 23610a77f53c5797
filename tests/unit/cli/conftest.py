"""Commands in the process of the tests."""

from __future__ import annotations

from contextlib import nullcontext

import pytest

from tidegate.cli import main


@pytest.fixture(autouse=True)
def no_spark_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Programs here run on the simulated engine, or not at all: no JVM is started for them."""
    monkeypatch.setattr(main, "spark_ahead", nullcontext)

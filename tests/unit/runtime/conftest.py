"""Fixtures of the runtime room's tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tidegate.base import faults


@pytest.fixture(autouse=True)
def _no_hook_left() -> Iterator[None]:
    yield
    faults.install(None)

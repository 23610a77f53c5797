"""What a job was computed to promise is what a reader meets after a failure, for every source with every sink."""

from __future__ import annotations

from pathlib import Path

import pytest
from guarantee_matrix import SINKS, SOURCES, observe

PAGE = Path(__file__).parents[3] / "docs" / "guarantees.md"


@pytest.mark.parametrize("sink", SINKS)
@pytest.mark.parametrize("source", SOURCES)
def test_what_is_seen_is_what_was_computed(source: str, sink: str, tmp_path: Path) -> None:
    computed, seen = observe(source, sink, tmp_path)
    assert (seen.lost, seen.doubled) == (computed.loses, computed.repeats)
    # What is not read again cannot reappear, unless it is made of state: the job of the matrix keeps none.
    assert seen.reappeared == (computed.reappears and not computed.loses)
    row = f"| {source} | {sink} | {computed.name} | {seen} |"
    assert row in PAGE.read_text(), "the page is made by: python tests/unit/connectors/guarantee_matrix.py"

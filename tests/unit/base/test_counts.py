"""Numbers of things in words."""

from __future__ import annotations

import pytest

from tidegate.base.plain_text import count


@pytest.mark.parametrize(
    ("number", "text"), [(0, "0 rounds"), (1, "1 round"), (2, "2 rounds"), (1_000, "1,000 rounds")]
)
def test_one_is_singular_and_all_others_are_plural(number: int, text: str) -> None:
    assert count(number, "round") == text

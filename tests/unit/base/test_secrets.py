"""A secret that was told is found in whatever is about to be stored."""

from __future__ import annotations

import pickle

import pytest

from tidegate.base import secrets


def test_what_was_told_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(secrets, "_known", set())
    content = pickle.dumps({"password": "pässword-planted"}, 5)
    assert not secrets.are_in(content)
    secrets.hide(["", "pässword-planted"])
    assert secrets.are_in(content) and not secrets.are_in(b"password")

"""Which directories commands may name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.base.errors import ConfigurationError
from tidegate.control.jobs import checked_target


@pytest.mark.parametrize(
    "target", ["/data/sp", "s3://bucket/sp", "file:///data/sp", "/data/100%", "/da ta/sp", "/a..b/c"]
)
def test_any_directory_by_default(target: str) -> None:
    assert checked_target(target, None, None) == target


@pytest.mark.parametrize(
    ("target", "why"),
    [
        ("", "empty"),
        (" ", "empty"),
        ("/a\0b", "control characters"),
        ("/a\nb", "control characters"),
        ("relative/sp", "not absolute"),
        ("~/sp", "not absolute"),
        ("/a/../b", "has .. in it"),
        ("/a/..", "has .. in it"),
        ("/a\\..\\b", "has .. in it"),
        ("/a/%2e%2e/b", "has .. in it"),
        ("/a/%252e%252e/b", "has .. in it"),
        ("/a/%25252e%25252e%252fb", "has .. in it"),
        ("/a/..%2f..%2fetc", "has .. in it"),
        ("s3://bucket/../other", "has .. in it"),
        ("simplecache::s3://bucket/sp", "more than one file system"),
    ],
)
def test_what_is_no_path_is_refused(target: str, why: str) -> None:
    with pytest.raises(ConfigurationError, match=why) as refused:
        checked_target(target, None, None)
    assert refused.value.rule == "The directory of the savepoint is not one that commands may name"


def test_with_a_list_only_what_lies_below_links_followed(tmp_path: Path) -> None:
    allowed = (f"{tmp_path}/ok", "s3://bucket/sp")
    (tmp_path / "ok").mkdir()
    os.symlink("/etc", tmp_path / "ok" / "out")
    for good in (
        f"{tmp_path}/ok",
        f"{tmp_path}/ok/a/b",
        f"file://{tmp_path}/ok/a",
        "s3://bucket/sp/x",
        "/configured/x",
    ):
        assert checked_target(good, allowed, "/configured") == good
    for bad in (
        f"{tmp_path}/okay",
        f"{tmp_path}",
        f"{tmp_path}/ok/out/x",
        "s3://bucket/spare",
        "s3://other/sp",
        "/etc",
    ):
        with pytest.raises(
            ConfigurationError, match=r"it is not below an allowed one: .*/ok, s3://bucket/sp, /configured"
        ):
            checked_target(bad, allowed, "/configured")

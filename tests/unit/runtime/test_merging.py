"""When state files become bases: incremental on and off, the changelog and its interval."""

from __future__ import annotations

from typing import Any

import pytest

from tidegate.common import options
from tidegate.runtime.planner import Merge, MergePolicy, Merging
from tidegate.runtime.settings import JobSettings


def policy(**given: Any) -> MergePolicy:
    keys = {"incremental": options.INCREMENTAL, "changelog": options.CHANGELOG, "every": options.MATERIALIZE_INTERVAL}
    return JobSettings.of({keys[name].key: value for name, value in given.items()}).merges


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, MergePolicy(True, None)),
        ({"incremental": False}, MergePolicy(False, None)),
        ({"changelog": True}, MergePolicy(True, 600_000)),
        ({"changelog": True, "incremental": False, "every": 50}, MergePolicy(True, 50)),
        ({"changelog": True, "every": 0}, MergePolicy(True, None)),
        ({"every": 50}, MergePolicy(True, None)),
    ],
)
def test_what_the_configuration_says(given: dict[str, Any], expected: MergePolicy) -> None:
    assert policy(**given) == expected


def test_only_full_checkpoints_are_whole() -> None:
    full, shared = Merging(MergePolicy(False), 0), Merging(MergePolicy(True), 0)
    assert [full.of_round(1, checkpoint=given) for given in (True, False)] == [Merge.WHOLE, Merge.TIERS]
    assert [shared.of_round(1, checkpoint=given) for given in (True, False)] == [Merge.TIERS, Merge.TIERS]


def test_the_changelog_becomes_bases_at_its_interval_whatever_checkpoints_do() -> None:
    merging = Merging(MergePolicy(True, 100), 1_000)
    found = {now: merging.of_round(now, checkpoint=now % 3 == 0) for now in range(1_000, 1_360, 30)}
    assert [now for now, merge in found.items() if merge is Merge.BASES] == [1_120, 1_240]
    assert Merge.WHOLE not in found.values()

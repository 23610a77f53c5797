"""Date patterns and zones of bucket assigners."""

from __future__ import annotations

import pytest

from tidegate.base.errors import ConfigurationError
from tidegate.connectors.files.bucket_assigners import BucketAssigner

NOW = 1_700_000_123_456  # 2023-11-14 22:15:23.456 UTC


@pytest.mark.parametrize(
    ("pattern", "zone", "bucket"),
    [
        ("yyyy-MM-dd--HH", "UTC", "2023-11-14--22"),
        ("yyyy-MM-dd--HH", "Europe/Rome", "2023-11-14--23"),
        ("yyyy-MM-dd--HH", "GMT+02:00", "2023-11-15--00"),
        ("yyyy-MM-dd HH:mm", "GMT-8", "2023-11-14 14:15"),
        ("'dt='yyyyMMdd/'hr='H", "UTC", "dt=20231114/hr=22"),
        ("yy.M.d ss SSS DDD", "UTC", "23.11.14 23 456 318"),
        ("HH 'o''clock'", "UTC", "22 o'clock"),
    ],
)
def test_bucket_follows_pattern_and_zone(pattern: str, zone: str, bucket: str) -> None:
    assert BucketAssigner.date_time_bucket_assigner(pattern, zone).common_bucket(NOW) == bucket


@pytest.mark.parametrize(("pattern", "found"), [("yyyy-QQ", "'QQ'"), ("yyyy'open", "an open quote")])
def test_unknown_patterns_are_refused(pattern: str, found: str) -> None:
    with pytest.raises(ConfigurationError, match=found):
        BucketAssigner.date_time_bucket_assigner(pattern)


def test_unknown_zones_are_refused() -> None:
    with pytest.raises(ConfigurationError, match="Mars/Olympus"):
        BucketAssigner.date_time_bucket_assigner(timezone_id="Mars/Olympus")

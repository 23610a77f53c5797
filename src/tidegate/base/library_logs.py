"""The logs of libraries that Tidegate uses: warnings and above, since their INFO lines tell users nothing about a job."""

from __future__ import annotations

import logging

# Kafka's client: connectors/kafka/cluster.py, which also limits how often it repeats itself.
LIBRARIES = (
    "aiobotocore",
    "asyncio",
    "boto3",
    "botocore",
    "fsspec",
    "py4j",
    "pyspark",
    "s3fs",
    "s3transfer",
    "urllib3",
)
_ours: set[str] = set()


def quiet_libraries(least: int = logging.WARNING) -> None:
    """``least``: the level from which on they are heard, at least WARNING. A level that a program has set itself stays."""
    for name in LIBRARIES:
        logger = logging.getLogger(name)
        if logger.level == logging.NOTSET or name in _ours:
            _ours.add(name)
            logger.setLevel(max(least, logging.WARNING))

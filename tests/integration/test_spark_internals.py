"""The private names of pyspark that jobs on a cluster need work with the jars that pyspark ships."""

from __future__ import annotations

from typing import Any

from pyspark import RDD, SparkContext

from tests.waiting import eventually
from tidegate.spark.pyspark_internals import executors, forget_block


def cached_partitions(rdd: RDD[Any]) -> int:
    """Return how many partitions of the only cached RDD are in memory."""
    [info] = rdd.context._jsc.sc().getRDDStorageInfo()
    assert info.id() == rdd.id()
    return int(info.numCachedPartitions())


def test_forgotten_block_is_no_longer_cached_and_others_stay(spark: SparkContext) -> None:
    cached = spark.parallelize(range(4), 2).persist()
    try:
        assert cached.sum() == 6
        forget_block(cached, 0)
        eventually(lambda: cached_partitions(cached) == 1, "one partition is forgotten")
        assert cached.sum() == 6
        eventually(lambda: cached_partitions(cached) == 2, "the partition is cached again")
    finally:
        cached.unpersist(True)


def test_local_master_has_no_executors_beside_the_driver(spark: SparkContext) -> None:
    assert executors(spark) == frozenset()

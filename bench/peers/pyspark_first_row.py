"""A bare PySpark program: one job, whose result is printed. What a first record costs without Tidegate."""

from __future__ import annotations

from pyspark.sql import SparkSession

spark = SparkSession.builder.master("local[2,4]").config("spark.ui.enabled", "false").getOrCreate()
print(spark.sparkContext.parallelize(range(4), 2).map(lambda number: number + 1).collect(), flush=True)
spark.stop()

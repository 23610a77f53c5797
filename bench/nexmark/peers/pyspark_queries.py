"""The Nexmark queries that Spark Structured Streaming has words for, over the files of the other engines.

Queries use built-in expressions and operators only: no Python function, no ``transformWithState``. The rest is in ``LEFT_OUT``.

Spark checkpoints once for each micro-batch, and reads a whole file in one. So the parts are cut into files of ``--batch`` events
before the timed part. A window is emitted when the watermark passes its end, and Spark has no last watermark at the end of input.
So the last file of a query with windows also has a person and a bid of a later day, which close the windows and are in no output.
"""

import argparse
import json
import os
import shutil
import sys
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.streaming import DataStreamWriter

ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"
LEFT_OUT = {
    "q4": "needs a timer at the expiry of each auction, and a line for each update",
    "q9": "needs a timer at the expiry of each auction",
    "q12": "Spark has one processing time for a micro-batch, and no end of the input that closes a window",
    "q15": "needs a line for each bid and exact distinct counts; streams have only approximate ones",
    "q16": "needs a line for each bid and exact distinct counts; streams have only approximate ones",
    "q17": "needs a line for each bid; an aggregation emits one for each key and micro-batch",
    "q19": "ranks over a stream are not supported",
}
SCHEMA = (
    "person struct<id: long, name: string, city: string, state: string, dateTime: long>,"
    "auction struct<id: long, itemName: string, dateTime: long, seller: long, category: long>,"
    "bid struct<auction: long, bidder: long, price: long, channel: string, url: string, dateTime: long, extra: string>"
)
DELAY = "4 seconds"
SIZE = "10 seconds"
A_DAY = 86_400_000


class Events:
    """The stream of events, once for each kind. Spark reads and parses only the columns of the plan."""

    def __init__(self, spark: SparkSession, directory: Path, side: Path, parallelism: int) -> None:
        self.spark = spark
        self.side = side
        self._events = spark.readStream.schema(SCHEMA).option("maxFilesPerTrigger", parallelism).json(str(directory))

    def of(self, kind: str) -> DataFrame:
        return self._events.where(F.col(kind).isNotNull()).select(f"{kind}.*")

    def timed(self, kind: str) -> DataFrame:
        return self.of(kind).withColumn("time", F.timestamp_millis("dateTime"))


def line(*columns: Column | str) -> Column:
    texts = [F.col(column) if isinstance(column, str) else column for column in columns]
    return F.concat_ws(",", *(F.coalesce(text.cast("string"), F.lit("")) for text in texts)).alias("value")


def q0(events: Events) -> DataFrame:
    return events.of("bid").select(line("auction", "bidder", "price", "dateTime", "extra"))


def q1(events: Events) -> DataFrame:
    return events.of("bid").select(line("auction", "bidder", F.col("price") * 0.908, "dateTime", "extra"))


def q2(events: Events) -> DataFrame:
    return events.of("bid").where("auction % 123 = 0").select(line("auction", "price"))


def q3(events: Events) -> DataFrame:
    auctions = events.of("auction").where("category = 10").select(F.col("id").alias("auctionId"), "seller")
    persons = events.of("person").where(F.col("state").isin("OR", "ID", "CA"))
    return auctions.join(persons, F.col("seller") == F.col("id")).select(line("name", "city", "state", "auctionId"))


def q5(events: Events) -> DataFrame:
    bids = events.timed("bid").withWatermark("time", DELAY)
    counts = bids.groupBy(F.window("time", SIZE, "2 seconds"), "auction").agg(F.count("*").alias("n"))
    tops = counts.groupBy("window").agg(
        F.max("n").alias("most"), F.collect_list(F.struct("auction", "n")).alias("counts")
    )
    best = tops.select("window", F.explode(F.expr("filter(counts, c -> c.n = most)")).alias("top"))
    return best.select(line("top.auction", "top.n", F.unix_millis("window.end")))


def q7(events: Events) -> DataFrame:
    bids = events.timed("bid").withWatermark("time", DELAY)
    # The greatest struct: the highest price, then the smaller bidder, dateTime and auction.
    bid = F.struct(
        "price", (-F.col("bidder")).alias("b"), (-F.col("dateTime")).alias("t"), (-F.col("auction")).alias("a"), "extra"
    )
    of_auction = bids.groupBy(F.window("time", SIZE), "auction").agg(F.max(bid).alias("best"))
    best = of_auction.groupBy("window").agg(F.max("best").alias("best"))
    end = F.unix_millis("window.end")
    return best.select(line(-F.col("best.a"), "best.price", -F.col("best.b"), -F.col("best.t"), "best.extra", end))


def q8(events: Events) -> DataFrame:
    """The co-group is one aggregation of both kinds."""
    persons = events.timed("person").select("time", "id", "name", F.lit(False).alias("sells"))
    sellers = events.timed("auction").select(
        "time", F.col("seller").alias("id"), F.lit(None).alias("name"), F.lit(True).alias("sells")
    )
    both = persons.union(sellers).withWatermark("time", DELAY)
    groups = both.groupBy(F.window("time", SIZE), "id").agg(F.max("name").alias("name"), F.max("sells").alias("sells"))
    return groups.where("name is not null and sells").select(line("id", "name", F.unix_millis("window.start")))


def q10(events: Events) -> DataFrame:
    """The buckets are directories of partitions: ``day=2015-07-15/minute=00-03``."""
    time_of = F.timestamp_millis("dateTime")
    day, minute = F.date_format(time_of, "yyyy-MM-dd").alias("day"), F.date_format(time_of, "HH-mm").alias("minute")
    return events.of("bid").select(line("auction", "bidder", "price", "dateTime", "extra"), day, minute)


def q11(events: Events) -> DataFrame:
    bids = events.timed("bid").withWatermark("time", DELAY)
    sessions = bids.groupBy(F.session_window("time", SIZE).alias("session"), "bidder").agg(F.count("*").alias("n"))
    return sessions.select(line("bidder", "n", F.unix_millis("session.start"), F.unix_millis("session.end")))


def q13(events: Events) -> DataFrame:
    side = events.spark.read.schema("key long, value string").csv(str(events.side))
    joined = events.of("bid").join(F.broadcast(side), F.col("auction") % 10000 == F.col("key"))
    return joined.select(line("auction", "bidder", "price", "dateTime", "value"))


def q14(events: Events) -> DataFrame:
    bids = events.timed("bid").withColumn("euros", 0.908 * F.col("price")).withColumn("hour", F.hour("time"))
    kind = (
        F.when(F.col("hour").between(8, 18), "dayTime")
        .when((F.col("hour") <= 6) | (F.col("hour") >= 20), "nightTime")
        .otherwise("otherTime")
    )
    letters = F.length("extra") - F.length(F.replace("extra", F.lit("c"), F.lit("")))
    bids = bids.where((F.col("euros") > 1_000_000) & (F.col("euros") < 50_000_000))
    return bids.select(line("auction", "bidder", "euros", kind, "dateTime", "extra", letters))


def q18(events: Events) -> DataFrame:
    """In update mode: a line for each pair and micro-batch. The last line of a pair is that of the other engines."""
    last = events.of("bid").groupBy("bidder", "auction").agg(F.max(F.struct("dateTime", "price")).alias("last"))
    return last.select(line("auction", "bidder", "last.price", "last.dateTime"))


def q20(events: Events) -> DataFrame:
    auctions = events.of("auction").where("category = 10").select("id", "itemName", "category", "seller")
    joined = events.of("bid").join(auctions, F.col("auction") == F.col("id"))
    return joined.select(line("auction", "bidder", "price", "dateTime", "itemName", "category", "seller"))


def q21(events: Events) -> DataFrame:
    channel = F.lower("channel")
    found = F.regexp_extract("url", "channel_id=([0-9]+)", 1)
    known = F.when(channel == "apple", "0").when(channel == "google", "1").when(channel == "facebook", "2")
    bids = events.of("bid").withColumn("channelId", known.when(channel == "baidu", "3").otherwise(found))
    return bids.where("channelId != ''").select(line("auction", "bidder", "price", "channel", "channelId"))


def q22(events: Events) -> DataFrame:
    parts = F.split("url", "/")
    directories = [F.get(parts, F.lit(i)) for i in (3, 4, 5)]
    return events.of("bid").select(line("auction", "bidder", "price", "channel", *directories))


QUERIES: dict[str, Callable[[Events], DataFrame]] = {
    query.__name__: query for query in (q0, q1, q2, q3, q5, q7, q8, q10, q11, q13, q14, q18, q20, q21, q22)
}
WINDOWS = {"q5", "q7", "q8", "q11"}
UPDATES = {"q18"}


def cut(source: Path, target: Path, batch: int, close_windows: bool) -> int:
    """Cut each part into files of its share of ``batch`` events, in the order of the events, and return the number of events."""
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    parts = sorted(source.glob("part-*.jsonl"))
    share = -(-batch // len(parts))
    records = latest = 0
    for part in parts:
        with part.open("rb") as lines:
            for number in range(sys.maxsize):
                chunk = list(islice(lines, share))
                if not chunk:
                    break
                records += len(chunk)
                file = target / f"{number:06d}-{part.name}"
                file.write_bytes(b"".join(chunk))
                # Spark takes the files by their time of modification: a batch has the same share of each part.
                os.utime(file, (number + 1, number + 1))
                latest = max(latest, number)
    if close_windows:
        file = target / f"{latest:06d}-{parts[0].name}"
        last = json.loads(file.read_bytes().splitlines()[-1])
        later = next(value["dateTime"] for value in last.values() if isinstance(value, dict)) + A_DAY
        bid = {"auction": -1, "bidder": -1, "price": 0, "channel": "", "url": "", "dateTime": later, "extra": ""}
        person = {"id": -1, "name": "", "city": "", "state": "", "dateTime": later}
        with file.open("a") as out:
            out.write(json.dumps({"bid": bid}) + "\n" + json.dumps({"person": person}) + "\n")
        os.utime(file, (latest + 1, latest + 1))
    return records


def session(parallelism: int) -> SparkSession:
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    spark = (
        SparkSession.builder.master(f"local[{parallelism}]")
        .config("spark.driver.memory", "2g")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.shuffle.partitions", parallelism)
        .config("spark.sql.streaming.stateStore.providerClass", ROCKSDB)
        .config("spark.sql.streaming.stateStore.rocksdb.changelogCheckpointing.enabled", "true")
        .getOrCreate()
    )
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def writer(query: str, lines: DataFrame, output: Path) -> DataStreamWriter:
    """Spark's file sink only appends. Updates go to a directory for each micro-batch, which a repeated batch overwrites."""
    if query in UPDATES:

        def write(batch: DataFrame, number: int) -> None:
            batch.write.mode("overwrite").text(str(output / f"batch-{number}"))

        return lines.writeStream.outputMode("update").foreachBatch(write)
    stream = lines.writeStream.outputMode("append").format("text").option("path", str(output))
    return stream.partitionBy("day", "minute") if query == "q10" else stream


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", required=True, choices=[*QUERIES, *LEFT_OUT])
    parser.add_argument("--input", type=Path, required=True)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--checkpoints", type=Path, required=True)
    parser.add_argument("--parallelism", type=int, default=2)
    parser.add_argument("--batch", type=int, default=250_000, help="events of a micro-batch, hence of a checkpoint")
    args = parser.parse_args()
    if args.query in LEFT_OUT:
        parser.error(f"{args.query} is left out: {LEFT_OUT[args.query]}")
    files = args.checkpoints / "input"
    records = cut(args.input, files, args.batch, close_windows=args.query in WINDOWS)

    spark = session(args.parallelism)
    events = Events(spark, files, args.input / "side.csv", args.parallelism)
    stream = writer(args.query, QUERIES[args.query](events), args.output).trigger(availableNow=True)
    start = time.perf_counter()
    query = stream.option("checkpointLocation", str(args.checkpoints / "spark")).start()
    query.awaitTermination()
    seconds = time.perf_counter() - start
    print(json.dumps({"engine": "pyspark", "query": args.query, "seconds": round(seconds, 3), "records": records}))


if __name__ == "__main__":
    main()

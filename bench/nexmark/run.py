"""Run the Nexmark queries on each engine, compare what the engines wrote, and measure.

``python bench/nexmark/run.py [--query q5 ...] [--engines tidegate flink-java ...] [--events SMALL LARGE] [--repeat N]
[--minutes M] [--resume]``

Each run is a process of its own on two cores. First every engine runs a small input and must write what the model says. Then the
engines take turns at two sizes and must write the same. An engine that writes anything else has no figures. *events/s* is the
difference of the sizes by the difference of the times of ``execute``, so what happens once drops out. *CPU* is the processor time
of all processes of the engine, also as a difference. Writes ``bench/results/nexmark.json``, ``docs/nexmark.svg`` and a table.
Other queries and variants in the file are kept, so a run may be done in portions: ``--minutes`` begins no query that might not
end in time, and ``--resume`` leaves out what this commit has measured at these sizes.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BENCH, REPO = HERE.parent, HERE.parent.parent
sys.path.append(str(BENCH))  # after this directory, which has a compare.py too

import compare  # noqa: E402
import cpu_time  # noqa: E402
import generate  # noqa: E402
import model  # noqa: E402
import plot  # noqa: E402
import report  # noqa: E402
from engines import JAVA_OPENS, RunFailed, pyflink_venv  # noqa: E402

PARALLELISM = 2
SEED = 1
CHECKED = 250_000
"""Events of the run that is compared with the model: 25 s of event time, two days."""
LIMIT_SECONDS = 900
KAFKA_JAR = BENCH / "build" / "flink-sql-connector-kafka-5.0.0-2.2.jar"
LABELS = {
    "tidegate": "Tidegate",
    "flink-java": "Flink 2.3 in Java",
    "pyflink-thread": "PyFlink 2.3, thread mode",
    "pyspark": "PySpark 4.3, built-in operators",
}
SCALE = {"pyflink-thread": 0.1}
"""Of the sizes: slow engines have less to do."""
SCALE_OF_QUERY = {"q16": 0.25}
"""The same: two states of a channel have an entry for nearly every bid, so time and memory of a large run are many times
those of other queries, for each engine."""
LEAST_DIFFERENCE, LEAST_SPREADS = 0.5, 2.0
"""The difference of the two sizes is at least so much of the small run, and so many times the spread of runs of one size."""
GOALS = {"files-hashmap": 1.0, "files-rocksdb": 1.2, "kafka-hashmap": 0.8, "kafka-rocksdb": 0.8}
"""The least geometric mean by processor time, of Flink in Java's speed."""
LEFT_OUT = {
    "pyflink-thread": {"q10": "PyFlink has no bucket assigner in Python"},
    "pyspark": dict.fromkeys(("q4", "q9", "q12", "q15", "q16", "q17", "q19"), "see peers/pyspark_queries.py"),
}


@dataclass(frozen=True)
class Place:
    """Where a run reads and writes."""

    input: Path
    output: Path
    checkpoints: Path
    servers: str = ""
    topic_in: str = ""
    topic_out: str = ""


def command(engine: str, query: str, place: Place, backend: str, settings: list[str]) -> list[str]:
    """Return the command line of an engine."""
    options = ["--query", query, "--checkpoints", str(place.checkpoints), "--parallelism", str(PARALLELISM)]
    if place.servers:
        options += ["--kafka-bootstrap", place.servers, "--kafka-in", place.topic_in, "--kafka-out", place.topic_out]
        options += ["--side", str(place.input / "side.csv")]
    else:
        options += ["--input", str(place.input), "--output", str(place.output)]
    if engine == "pyspark":
        return [sys.executable, str(HERE / "peers" / "pyspark_queries.py"), *options]
    options += ["--backend", backend, *itertools.chain(*(["--set", setting] for setting in settings))]
    if engine == "tidegate":
        program = [str(Path(sys.executable).parent / "tidegate"), "run", "--pyflink", str(HERE / "queries.py")]
        return [sys.executable, *program, *options]
    if engine == "pyflink-thread":
        options += ["--set", "python.execution-mode=thread", "--set", "python.fn-execution.bundle.size=10000"]
        if place.servers:
            options += ["--set", f"pipeline.jars={KAFKA_JAR.as_uri()}"]
        return [str(pyflink_venv() / "bin" / "python"), str(HERE / "queries.py"), *options]
    jars = next(iter(pyflink_venv().glob("lib/python*/site-packages/pyflink/lib")), None)
    if jars is None or not (BENCH / "build" / "nexmark" / "Nexmark.class").exists():
        raise RunFailed("Flink in Java is not set up; run bench/setup_peers.sh")
    classes = f"{BENCH / 'build' / 'nexmark'}:{jars}/*:{KAFKA_JAR}"
    return ["java", "-Xmx2g", *JAVA_OPENS, "-cp", classes, "Nexmark", *options]


class Memory:
    """The peak of the memory of a session's processes, each second; memory they share counts once (PSS)."""

    def __init__(self, session: int) -> None:
        self._session, self.peak = session, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._ended.wait(1):
            self.peak = max(self.peak, sum(map(self._of, Path("/proc").glob("[0-9]*"))))

    def _of(self, process: Path) -> int:
        try:
            if int((process / "stat").read_text().rpartition(")")[2].split()[3]) != self._session:
                return 0
            return int((process / "smaps_rollup").read_text().partition("\nPss:")[2].split()[0]) * 1024
        except (OSError, IndexError, ValueError):  # the process has ended
            return 0


def run(engine: str, query: str, place: Place, backend: str, settings: list[str]) -> dict[str, Any]:
    """Run a query once, and return its seconds, processor seconds and peak memory."""
    environment = dict(os.environ)
    environment.pop("PYTHONPATH", None)
    if engine in ("tidegate", "pyspark"):
        environment |= {"PYTHONPATH": f"{REPO / 'src'}", "PYSPARK_PYTHON": sys.executable}
    arguments = command(engine, query, place, backend, settings)
    log = tempfile.TemporaryFile("w+")  # noqa: SIM115 - as long as the process
    started = time.monotonic()
    process = subprocess.Popen(arguments, env=environment, stdout=log, stderr=log, text=True, start_new_session=True)
    try:
        with cpu_time.CpuTime(process.pid) as used, Memory(process.pid) as memory:
            process.wait(LIMIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise RunFailed(f"no end after {LIMIT_SECONDS} s: {' '.join(arguments)}") from None
    finally:
        _end_group(process.pid)
        process.wait()
    wall = time.monotonic() - started
    log.seek(0)
    output = log.read().splitlines()
    log.close()
    line = next((line for line in reversed(output) if line.startswith("{")), None)
    if process.returncode != 0 or line is None:
        raise RunFailed(f"exit code {process.returncode}: {' '.join(arguments)}\n" + "\n".join(output[-15:]))
    return {
        "seconds": json.loads(line)["seconds"],
        "process_seconds": round(wall, 2),
        "cpu_seconds": round(used.seconds, 2),
        "peak_mb": round(memory.peak / 1e6),
    }


def _end_group(group: int) -> None:
    """End what the process started: it leads a group of its own."""
    try:
        os.killpg(group, signal.SIGKILL)
    except ProcessLookupError:
        return


class Bench:
    def __init__(self, args: argparse.Namespace, home: Path, servers: str) -> None:
        self.args, self.home, self.servers = args, home, servers
        self.models: dict[int, model.Model] = {}
        self._count = itertools.count()

    def input(self, events: int) -> Path:
        """Return the directory with that many events; they are made once."""
        directory = Path(self.args.data) / f"{events}-{PARALLELISM}-{SEED}"
        generate.write_files(directory, events, PARALLELISM, SEED)
        return directory

    def topic(self, events: int) -> str:
        name = f"nexmark-{events}"
        if not hasattr(self, name):
            generate.fill_topic(self.servers, name, events, PARALLELISM, SEED)
            setattr(self, name, True)
        return name

    def once(self, engine: str, query: str, events: int) -> tuple[dict[str, Any], Path]:
        """Run once, and return the figures and the directory of the output."""
        number = next(self._count)
        directory = self.home / f"{engine}-{query}-{number}"
        directory.mkdir()
        place = Place(self.input(events), directory / "out", directory / "checkpoints")
        if self.servers:
            names = self.topic(events), f"out-{engine}-{query}-{number}-{os.getpid()}"
            place = Place(place.input, place.output, place.checkpoints, self.servers, *names)
            create_topic(self.servers, place.topic_out)
        figures = run(engine, query, place, self.args.backend, self.args.set)
        if self.servers:
            place.output.mkdir()
            (place.output / "lines").write_text(
                "".join(f"{line}\n" for line in read_topic(self.servers, place.topic_out))
            )
        shutil.rmtree(place.checkpoints, ignore_errors=True)
        return {"events": events, **figures, "load": round(os.getloadavg()[0], 2)}, place.output

    def lines(self, query: str, output: Path) -> Iterable[str]:
        return compare.lines_of("" if self.servers else query, output)

    def check(self, engine: str, query: str) -> list[str]:
        """Return what differs from the model on a small input."""
        if CHECKED not in self.models:
            self.models[CHECKED] = model.Model.of_directory(self.input(CHECKED))
        _, output = self.once(engine, query, CHECKED)
        name = "q0" if query == "q10" and self.servers else query
        found = compare.differences(name, self.lines(query, output), self.models[CHECKED].lines(name))
        shutil.rmtree(output.parent, ignore_errors=True)
        return found

    def measure(self, query: str) -> dict[str, dict[str, Any]]:
        """Return the results of all engines for a query."""
        results: dict[str, dict[str, Any]] = {}
        for engine in self.args.engines:
            if reason := LEFT_OUT.get(engine, {}).get(query):
                results[engine] = {"left_out": reason}
                continue
            results[engine] = {"runs": []}
            if not self.args.no_check:
                _try(results[engine], lambda engine=engine: self.check(engine, query))
                say(f"{query} {engine}: {'equal to the model' if 'failed' not in results[engine] else 'FAILED'}")
        references: dict[int, Path] = {}
        for repetition in range(self.args.repeat):
            order = self.args.engines if repetition % 2 == 0 else self.args.engines[::-1]
            for scale, engine in itertools.product((0, 1), order):
                if "runs" in results[engine] and "failed" not in results[engine]:
                    events = scaled(self.args.events[scale], engine, query)
                    _try(
                        results[engine], lambda e=engine, n=events: self._measured(results[e], references, e, query, n)
                    )
        for output in references.values():
            shutil.rmtree(output.parent, ignore_errors=True)
        for engine, result in results.items():
            finished = datetime.now(UTC).isoformat(timespec="seconds")
            result |= {"finished": finished, "commit": commit(), **summary(result.get("runs", []))}
            say(f"{query} {engine}: {json.dumps({k: v for k, v in result.items() if k != 'runs'})}")
        return results

    def _measured(
        self, result: dict[str, Any], references: dict[int, Path], engine: str, query: str, events: int
    ) -> list[str]:
        figures, output = self.once(engine, query, events)
        say(f"{query} {engine}: {figures}")
        reference = references.setdefault(events, output)
        if reference == output:
            result["runs"].append(figures)
            return []
        name = "q0" if query == "q10" and self.servers else query
        found = compare.differences(name, self.lines(query, output), self.lines(query, reference))
        if not found:
            result["runs"].append(figures)
        shutil.rmtree(output.parent, ignore_errors=True)
        return found


def _try(result: dict[str, Any], action: Any) -> None:
    try:
        if found := action():
            result["failed"] = "another output: " + "\n".join(found)
    except RunFailed as error:
        result["failed"] = str(error)
    if "failed" in result:
        say(result["failed"])


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of an engine: medians of each size, and the difference of the two sizes.

    A difference that is small beside the small run, or beside how far runs of one size are apart, is mostly noise of the start.
    Then there is no such figure, but a reason in ``unresolved``."""
    sizes = sorted({figures["events"] for figures in runs})
    if len(sizes) < 2:
        return {}
    small, large = sizes
    figures: dict[str, Any] = {"peak_mb": max(r["peak_mb"] for r in runs)}
    reasons = []
    for name in ("seconds", "cpu_seconds"):
        found = [[r[name] for r in runs if r["events"] == size] for size in sizes]
        medians = [statistics.median(values) for values in found]
        spread = max(max(values) - min(values) for values in found)
        difference = medians[1] - medians[0]
        if difference < LEAST_DIFFERENCE * medians[0] or difference < LEAST_SPREADS * spread:
            reasons.append(f"{name}: {medians[0]:.1f} and {medians[1]:.1f}, runs of one size up to {spread:.1f} apart")
        elif name == "seconds":
            figures["events_per_second"] = round((large - small) / difference)
        else:
            figures["cpu_us_per_event"] = round(difference / (large - small) * 1e6, 3)
    if reasons:
        figures["unresolved"] = "; ".join([*reasons, "larger --events"])
    return figures


MEASURED = ("src", *(f"bench/nexmark/{name}" for name in ("queries.py", "generator.py", "java")))
"""What a measurement depends on."""


@functools.cache
def commit() -> str:
    """Return the last commit of what is measured, with a mark if it was changed since."""
    last = _git("log", "-1", "--format=%H", "--", *MEASURED)
    return last + ("-dirty" if _git("status", "--porcelain", "--", *MEASURED) else "")


def _git(*arguments: str) -> str:
    return subprocess.run(
        ["git", "-C", str(REPO), *arguments], capture_output=True, text=True, check=True
    ).stdout.strip()


def create_topic(servers: str, topic: str) -> None:
    from confluent_kafka.admin import AdminClient
    from confluent_kafka.cimpl import NewTopic

    admin = AdminClient({"bootstrap.servers": servers, "log_level": 0})
    for future in admin.create_topics([NewTopic(topic, PARALLELISM, 1)]).values():
        future.result(30)


def read_topic(servers: str, topic: str) -> list[str]:
    """Return the committed values of a topic."""
    from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition

    consumer = Consumer(
        {
            "bootstrap.servers": servers,
            "group.id": topic,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "enable.partition.eof": True,
            "log_level": 0,
        }
    )
    consumer.assign([TopicPartition(topic, part, OFFSET_BEGINNING) for part in range(PARALLELISM)])
    found, ended = [], set()
    while len(ended) < PARALLELISM:
        for message in consumer.consume(10_000, 0.2):
            if message.error() is None:
                found.append((message.value() or b"").decode())
            else:
                ended.add(message.partition())
    consumer.close()
    return found


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def write(args: argparse.Namespace, results: dict[str, dict[str, dict[str, Any]]]) -> None:
    """Put the results into the file of the variant, and show the table."""
    former = stored()
    kept = former.setdefault(variant(args), {})
    for query, of_engine in results.items():
        kept.setdefault(query, {}).update(of_engine)
    body = {"events": args.events, "repeat": args.repeat, "checked_events": CHECKED, "variants": former}
    verdicts = [verdict for name, of in sorted(former.items()) for verdict in goals(name, of)]
    report.write("nexmark", body, verdicts)
    show(args)


def stored() -> dict[str, dict[str, dict[str, Any]]]:
    """Return the results in the file, by variant, query and engine."""
    path = report.RESULTS / "nexmark.json"
    found: dict[str, dict[str, dict[str, Any]]] = json.loads(path.read_text())["variants"] if path.exists() else {}
    return found


def variant(args: argparse.Namespace) -> str:
    return ("kafka" if args.kafka else "files") + f"-{args.backend}"


def scaled(events: int, engine: str, query: str) -> int:
    return int(events * SCALE.get(engine, 1) * SCALE_OF_QUERY.get(query, 1))


def is_measured(args: argparse.Namespace, query: str) -> bool:
    """Tell whether the file has figures of all engines for this query, of this commit, these sizes and repetitions."""
    found = stored().get(variant(args), {}).get(query, {})
    for engine in args.engines:
        result = found.get(engine, {})
        done = sorted(run["events"] for run in result.get("runs", []))
        due = sorted(scaled(events, engine, query) for events in args.events * args.repeat)
        if query in LEFT_OUT.get(engine, {}):
            continue
        if "failed" in result or result.get("commit") != commit() or done != due:
            return False
    return True


def goals(name: str, of_query: dict[str, dict[str, Any]]) -> list[report.Verdict]:
    """Return the goals of a variant beside Flink in Java, by processor time."""
    found = {query: pair[1] for query, of in of_query.items() if (pair := ratios_of(of))[1] is not None}
    if not found:
        return []
    least = min(found, key=lambda query: found[query])
    every = f"{len(found)} of {len(model.QUERIES)} queries"
    needed = GOALS[name]
    return [
        report.Verdict(f"{name}: geometric mean by CPU of Flink in Java, {every}", mean(found.values()), needed),
        report.Verdict(f"{name}: the least by CPU of Flink in Java ({least})", found[least], 0.5),
    ]


def mean(ratios: Iterable[float]) -> float:
    return math.exp(statistics.fmean(map(math.log, ratios)))


def show(args: argparse.Namespace) -> None:
    """Draw the picture, and show the table of a variant."""
    name = variant(args)
    kept = stored()[name]
    ordered = {query: kept[query] for query in model.QUERIES if query in kept}
    if name == "files-hashmap":
        (REPO / "docs" / "nexmark.svg").write_text(plot.drawn(ordered, LABELS))
    engines = [engine for engine in LABELS if any(engine in of for of in ordered.values())]
    rows = [[query, *(cell(of.get(engine)) for engine in engines), ratio(of)] for query, of in ordered.items()]
    head = ["query", *(LABELS[engine] for engine in engines), "Tidegate / Java, by time and by CPU"]
    notes = ["Events a second; microseconds of processor time for an event; peak memory in MB. `?`: hidden by noise."]
    for place, by in enumerate(("time", "CPU")):
        found = [one for of in ordered.values() if (one := ratios_of(of)[place]) is not None]
        if found:
            notes.append(f"Geometric mean of {len(found)} ratios by {by}: {mean(found):.2f}.")
    report.show(f"Nexmark, {name}", head, rows, goals(name, kept), notes)


def cell(result: dict[str, Any] | None) -> str:
    if result is None:
        return ""
    if "failed" in result or "peak_mb" not in result:
        return next((name.replace("left_out", "-") for name in ("left_out", "failed") if name in result), "")
    speed, cpu = result.get("events_per_second"), result.get("cpu_us_per_event")
    shown = "?" if speed is None else f"{speed:,}", "?" if cpu is None else f"{cpu:.2f}"
    return f"{shown[0]} ({shown[1]}; {result['peak_mb']:,})"


def ratios_of(of_engine: dict[str, dict[str, Any]]) -> tuple[float | None, float | None]:
    """Return Tidegate's speed by that of Flink in Java: by time and by processor time. None: not measured."""
    ours, java = of_engine.get("tidegate", {}), of_engine.get("flink-java", {})
    if "failed" in ours or "failed" in java:
        return None, None
    time, cpu = "events_per_second", "cpu_us_per_event"
    by_time = ours[time] / java[time] if time in ours and time in java else None
    return by_time, java[cpu] / ours[cpu] if cpu in ours and cpu in java else None


def ratio(of_engine: dict[str, dict[str, Any]]) -> str:
    pair = ratios_of(of_engine)
    return "" if pair == (None, None) else ", ".join("?" if one is None else f"{one:.2f}" for one in pair)


def in_time(queries: list[str], seconds: float, now: Callable[[], float]) -> Iterator[str]:
    """Yield the queries, as long as one that takes as long as the slowest so far would end in time."""
    end, slowest = now() + seconds, 0.0
    for number, query in enumerate(queries):
        began = now()
        if began + slowest > end:
            say(f"no time is left for {', '.join(queries[number:])}; the same command with --resume measures them")
            return
        yield query
        slowest = max(slowest, now() - began)


def parsed(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--query", nargs="*", default=model.QUERIES, choices=model.QUERIES)
    parser.add_argument("--engines", nargs="*", default=["tidegate", "flink-java"], choices=list(LABELS))
    parser.add_argument("--events", nargs=2, type=int, default=[1_000_000, 3_000_000], metavar=("SMALL", "LARGE"))
    parser.add_argument("--repeat", type=int, default=3)
    parser.add_argument("--backend", choices=["hashmap", "rocksdb"], default="hashmap")
    parser.add_argument("--kafka", action="store_true", help="from and to topics of a broker that is started")
    parser.add_argument("--no-check", action="store_true", help="do not run the small input against the model")
    parser.add_argument("--check-only", action="store_true", help="run only the small input against the model")
    parser.add_argument(
        "--minutes",
        type=float,
        default=math.inf,
        help="begin no query that might not end by then: as the slowest so far",
    )
    parser.add_argument("--resume", action="store_true", help="leave out what this commit has measured at these sizes")
    parser.add_argument("--show", action="store_true", help="run nothing; show the table of the results in the file")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="a setting of all engines but PySpark"
    )
    parser.add_argument("--data", default=str(Path(tempfile.gettempdir()) / "tidegate-nexmark"), help="generated input")
    return parser.parse_args(arguments)


def main() -> int:
    args = parsed(None)
    if args.show:
        show(args)
        return 0
    if args.check_only:
        args.repeat = 0
    queries = [query for query in args.query if not (args.resume and is_measured(args, query))]
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that the engine's processes end, too
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:2])
    results: dict[str, dict[str, dict[str, Any]]] = {}
    home = Path(tempfile.mkdtemp(prefix="nexmark-"))
    broker = None
    try:
        if args.kafka:
            from tidegate.connectors.kafka.dev_broker import DevBroker, free_port

            broker = DevBroker(str(home / "broker"), free_port())
            broker.start()
        bench = Bench(args, home, broker.bootstrap_servers if broker else "")
        for query in in_time(queries, args.minutes * 60, time.monotonic):
            results[query] = bench.measure(query)
            if not args.check_only:
                write(args, {query: results[query]})  # after each: a run that breaks off has measured something
    finally:
        if broker:
            broker.delete()
        shutil.rmtree(home, ignore_errors=True)
    return 1 if any("failed" in result for of in results.values() for result in of.values()) else 0


if __name__ == "__main__":
    sys.exit(main())

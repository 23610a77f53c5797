"""``tidegate certify``: ten kinds of faults in user code are found, with operator, line and cure; right programs pass."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

JOBS = Path(__file__).parent / "certify_jobs"
ROOT = Path(__file__).parents[3]
FAULTS = {
    "field_as_state": "field-as-state",
    "randomness": "randomness",
    "random_ids": "randomness",
    "wall_clock": "wall-clock",
    "repeating_sink": "sink-repeats",
    "order_of_a_set": "order-of-a-set",
    "missing_uid": "missing-uid",
    "mutable_default": "mutable-default",
    "state_outside_of_key": "state-outside-of-key",
    "state_of_another_key": "field-as-state",
    "unordered_key": "unordered-key",
    "time_zone": "time-zone",
}


def certify(script: Path | str, *options: str, arguments: tuple[str, ...] = (), **environment: str) -> Any:
    command = [sys.executable, "-m", "tidegate.cli", "certify", "--json", *options, str(script), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, env={**os.environ, **environment}, check=False
    )
    errors = [line for line in done.stderr.splitlines() if line.startswith("{")]
    text = done.stdout or (errors[-1] if errors else "")
    assert text, done.stderr
    return done.returncode, json.loads(text)


@pytest.mark.parametrize("name", FAULTS)
def test_fault_is_found_with_its_line_and_its_cure(name: str) -> None:
    script = JOBS / f"{name}.py"
    code, report = certify(script, "--schedules", "6")
    [line] = [number for number, text in enumerate(script.read_text().splitlines(), 1) if "# BUG" in text]
    found = {finding["kind"]: finding for finding in report["findings"]}
    assert (code, report["certified"]) == (1, False)
    assert FAULTS[name] in found, report
    finding = found[FAULTS[name]]
    allowed = {line, line - 1, line + 1} if name == "state_of_another_key" else {line}
    assert int(re.search(r"\.py:(\d+)", finding["line"])[1]) in allowed, finding  # type: ignore[index]
    assert finding["operator"] != "the job"
    assert finding["cure"]
    assert set(found) <= {FAULTS[name], "time-zone"}, "a fault is reported as itself"


WINDOWS = """\
from tidegate.common import Types
from tidegate.datastream import AggregateFunction, StreamExecutionEnvironment
from tidegate.datastream.window import CountTrigger, Evictor, GlobalWindows, Trigger, TriggerResult


class Third(Trigger):
    def __init__(self):
        self.seen = 0

    def on_element(self, element, timestamp, window, ctx):
        self.seen += 1
        return TriggerResult.FIRE_AND_PURGE if self.seen % 3 == 0 else TriggerResult.CONTINUE

    def on_processing_time(self, time, window, ctx):
        return TriggerResult.CONTINUE

    on_event_time = on_processing_time

    def on_merge(self, window, ctx):
        pass

    def clear(self, window, ctx):
        pass


class EveryOther(Evictor):
    def __init__(self):
        self.seen = 0

    def evict_before(self, elements, size, window, ctx):
        self.seen += 1
        if self.seen % 2:
            del elements[0]

    def evict_after(self, elements, size, window, ctx):
        pass


class Weighted(AggregateFunction):
    def __init__(self):
        self.seen = 0

    def create_accumulator(self):
        return 0

    def add(self, value, accumulator):
        self.seen += 1
        return accumulator + value[1] * self.seen

    def get_result(self, accumulator):
        return accumulator

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000)
pairs = env.from_collection([("k", n) for n in range(40)], Types.TUPLE([Types.STRING(), Types.LONG()])).uid("pairs")
windows = pairs.key_by(lambda pair: pair[0]).window(GlobalWindows.create())
(WINDOWED).uid("windows").print()
env.execute("windows")
"""


@pytest.mark.parametrize(
    ("windowed", "method", "cure"),
    [
        (
            "windows.trigger(Third()).reduce(lambda a, b: (a[0], a[1] + b[1]))",
            "on_element",
            "ctx.get_partitioned_state",
        ),
        (
            "windows.trigger(CountTrigger.of(4)).evictor(EveryOther()).reduce(lambda a, b: (a[0], a[1] + b[1]))",
            "evict_before",
            "an evictor",
        ),
        ("windows.trigger(CountTrigger.of(4)).aggregate(Weighted())", "add", "keep it in the accumulator"),
    ],
)
def test_field_of_a_part_of_a_window_is_found_with_its_line(
    windowed: str, method: str, cure: str, tmp_path: Path
) -> None:
    script = tmp_path / "job.py"
    script.write_text(WINDOWS.replace("WINDOWED", windowed))
    code, report = certify(script, "--schedules", "1")
    assert code == 1
    [finding] = report["findings"]
    assert finding["kind"] == "field-as-state" and f"in {method}: self.seen += 1" in finding["line"]
    assert cure in finding["cure"]


SHARED = """\
from tidegate.common import Types
from tidegate.datastream import AggregateFunction, StreamExecutionEnvironment


class Seen(AggregateFunction):
    numbers = []

    def create_accumulator(self):
        return self.numbers

    def add(self, value, accumulator):
        accumulator.append(value[1])
        return accumulator

    def get_result(self, accumulator):
        return len(accumulator)

    def merge(self, acc_a, acc_b):
        return acc_a + acc_b


env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000)
pairs = env.from_collection([(f"k{n % 3}", n) for n in range(40)], Types.TUPLE([Types.STRING(), Types.LONG()])).uid("pairs")
pairs.key_by(lambda pair: pair[0]).count_window(2).aggregate(Seen()).uid("windows").print()
env.execute("shared")
"""


def test_note_on_the_order_of_records_names_what_the_functions_remember(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(SHARED)
    _, report = certify(tmp_path / "job.py", "--schedules", "1")
    [note] = [note for note in report["notes"] if "depends on the order" in note]
    assert "class attribute 'numbers' of operator" in note


def test_all_faults_of_the_issue_are_here() -> None:
    assert {f"{path.stem}" for path in JOBS.glob("*.py")} - {"right"} == set(FAULTS)
    assert len(set(FAULTS.values())) == 10


@pytest.mark.parametrize(
    "script", [JOBS / "right.py", ROOT / "examples" / "keyed_totals.py", ROOT / "examples" / "word_count.py"]
)
def test_right_program_has_no_finding(script: Path) -> None:
    code, report = certify(script, "--schedules", "40")
    assert (code, report["findings"], report["schedules"]) == (0, [], 40)


KEYED = """
import sys
import time
from datetime import datetime
from tidegate.common import Duration, Time, Types, WatermarkStrategy
from tidegate.common.watermark_strategy import TimestampAssigner
from tidegate.datastream import KeyedProcessFunction, ProcessWindowFunction, StreamExecutionEnvironment
from tidegate.datastream.state import ListStateDescriptor
from tidegate.datastream.window import TumblingEventTimeWindows

class Seconds(TimestampAssigner):
    def extract_timestamp(self, value, record_timestamp):
        return value[1] * 1_000

class Views(ProcessWindowFunction):
    def process(self, key, context, elements):
        yield context.window().end, key, len(list(elements))

class Top(KeyedProcessFunction):
    def open(self, context):
        self.views = context.get_list_state(ListStateDescriptor("views", Types.PICKLED_BYTE_ARRAY()))
    def process_element(self, value, ctx):
        self.views.add(value)
        ctx.timer_service().register_event_time_timer(value[0] + 1)
    def on_timer(self, timestamp, ctx):
        views = sorted(self.views.get(), key=%s)
        self.views.clear()
        yield time.strftime("%%H:%%M", time.%s(timestamp / 1000)), [view[1] for view in views[:3]]

env = StreamExecutionEnvironment.get_execution_environment()
env.enable_checkpointing(1_000)
strategy = WatermarkStrategy.for_monotonous_timestamps().with_timestamp_assigner(Seconds())
events = env.from_collection([(f"item-{n %% 7}", n) for n in range(140)]).uid("events").assign_timestamps_and_watermarks(strategy)
views = events.key_by(lambda e: e[0]).window(TumblingEventTimeWindows.of(Time.seconds(10))).process(Views()).uid("views")
views.key_by(lambda v: v[0]).process(Top()).uid("top").print()
env.execute("top")
"""
BY_VIEWS, BY_VIEWS_AND_NAME = "lambda view: -view[2]", "lambda view: (-view[2], view[1])"


@pytest.mark.parametrize("order", [BY_VIEWS, BY_VIEWS_AND_NAME])
def test_calls_after_a_shuffle_are_watched_too(tmp_path: Path, order: str) -> None:
    (tmp_path / "job.py").write_text(KEYED % (order, "localtime"))
    code, report = certify(tmp_path / "job.py", "--schedules", "4")
    assert (code, [finding["kind"] for finding in report["findings"]]) == (1, ["time-zone"])
    assert "time.localtime" in report["findings"][0]["line"] and "on_timer" in report["findings"][0]["line"]


def test_a_result_that_depends_on_the_order_of_keys_is_a_note_and_no_loss_with_a_worker(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(KEYED % (BY_VIEWS, "gmtime"))
    code, report = certify(tmp_path / "job.py", "--schedules", "4")
    assert (code, report["findings"]) == (0, [])
    assert report["notes"][0].startswith(
        "the result depends on the order in which records of several splits, inputs or keys"
    )
    (tmp_path / "job.py").write_text(KEYED % (BY_VIEWS_AND_NAME, "gmtime"))
    assert certify(tmp_path / "job.py", "--schedules", "4")[1] | {"seconds": 0, "schedules": 0, "points": 0} == {
        "certified": True, "job": "top", "findings": [], "notes": [], "seconds": 0, "schedules": 0, "points": 0
    }  # fmt: skip


@pytest.mark.slow
def test_examples_have_no_finding() -> None:
    for script, arguments in [("two_phase_commit.py", ()), ("demo/orders_job.py", ("/nowhere", "--orders", "200"))]:
        code, report = certify(ROOT / "examples" / script, arguments=arguments)
        assert (code, report["findings"]) == (0, [])


def test_text_report(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tidegate.cli", "certify", "--schedules", "3", str(JOBS / "mutable_default.py")]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert lines[0].startswith("job 'mutable default': 1 finding; 3 schedules in ")
    assert lines[2] == "1. A mutable default is used as state [mutable-default]"
    assert [line.split(":")[0] for line in lines[3:]] == ["  where", "  found", "  cure"]
    assert "schedules: 3 of 3" in done.stderr


# -- nothing outside is touched --------------------------------------------------------------------------------------------

READS_KAFKA = """
import sys
from tidegate.common import Types, WatermarkStrategy, SimpleStringSchema
from tidegate.datastream import StreamExecutionEnvironment
from tidegate.datastream.connectors.base import DeliveryGuarantee
from tidegate.datastream.connectors.kafka import KafkaOffsetsInitializer, KafkaRecordSerializationSchema, KafkaSink, KafkaSource

server = sys.argv[1]
source = (
    KafkaSource.builder().set_bootstrap_servers(server).set_topics("orders").set_group_id("g")
    .set_starting_offsets(KafkaOffsetsInitializer.earliest()).set_value_only_deserializer(SimpleStringSchema()).build()
)
schema = KafkaRecordSerializationSchema.builder().set_topic("out").set_value_serialization_schema(SimpleStringSchema()).build()
sink = KafkaSink.builder().set_bootstrap_servers(server).set_record_serializer(schema)\\
    .set_delivery_guarantee(DeliveryGuarantee.EXACTLY_ONCE).set_transactional_id_prefix("p").build()
env = StreamExecutionEnvironment.get_execution_environment()
lines = env.from_source(source, WatermarkStrategy.no_watermarks(), "orders")
lines.map(lambda line: line.upper(), Types.STRING()).sink_to(sink)
env.execute("kafka")
"""

CALLS_OUTSIDE = """
import socket, sys
from tidegate.datastream import StreamExecutionEnvironment

host, port = sys.argv[1].split(":")

def call(value):
    with socket.create_connection((host, int(port)), timeout=1):
        return value

env = StreamExecutionEnvironment.get_execution_environment()
env.from_collection([1, 2]).map(call).print()
env.execute("calls")
"""

STARTS_A_PROGRAM = CALLS_OUTSIDE.replace("import socket, sys", "import subprocess, sys").replace(
    "with socket.create_connection((host, int(port)), timeout=1):\n        return value",
    "return subprocess.check_output(['true'])",
)


@pytest.fixture
def listening() -> Iterator[tuple[str, list[Any]]]:
    """A server, and everybody who has connected."""
    connected: list[Any] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def accept() -> None:
            while True:
                try:
                    connected.append(server.accept())
                except OSError:
                    return

        threading.Thread(target=accept, daemon=True).start()
        yield f"127.0.0.1:{server.getsockname()[1]}", connected
        server.shutdown(socket.SHUT_RDWR)


def test_source_of_a_real_system_is_refused(tmp_path: Path, listening: tuple[str, list[Any]]) -> None:
    (tmp_path / "job.py").write_text(READS_KAFKA)
    code, told = certify(tmp_path / "job.py", arguments=(listening[0],))
    assert code == 10
    assert "certify reads no source of a real system: it needs a recorded sample" in told["message"]
    assert "source 'orders' (KafkaSource)" in told["message"]
    assert "--input orders=FILE" in told["message"]
    assert listening[1] == []


def test_sample_takes_the_place_of_kafka_and_nothing_is_connected(
    tmp_path: Path, listening: tuple[str, list[Any]]
) -> None:
    (tmp_path / "job.py").write_text(READS_KAFKA)
    (tmp_path / "sample.txt").write_text("".join(f"order {n}\n" for n in range(20)))
    sample = f"orders={tmp_path / 'sample.txt'}"
    code, report = certify(tmp_path / "job.py", "--input", sample, "--schedules", "10", arguments=(listening[0],))
    assert (code, report["findings"], report["schedules"]) == (0, [], 10)
    assert listening[1] == []


@pytest.mark.parametrize("text", [CALLS_OUTSIDE, STARTS_A_PROGRAM])
def test_function_that_calls_another_system_is_stopped(
    text: str, tmp_path: Path, listening: tuple[str, list[Any]]
) -> None:
    (tmp_path / "job.py").write_text(text)
    code, report = certify(tmp_path / "job.py", "--schedules", "2", arguments=(listening[0],))
    assert (code, [finding["kind"] for finding in report["findings"]]) == (1, ["touches-outside"])
    assert "certify runs without network and other programs" in report["findings"][0]["found"]
    assert listening[1] == []


def test_user_sink_is_never_called(tmp_path: Path) -> None:
    text = (JOBS / "repeating_sink.py").read_text().replace("/nowhere/else.txt", str(tmp_path / "written"))
    (tmp_path / "job.py").write_text(text)
    code, report = certify(tmp_path / "job.py", "--schedules", "3")
    assert (code, report["findings"][0]["kind"]) == (1, "sink-repeats")
    assert not (tmp_path / "written").exists()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--input", "orders"), "--input needs NAME=FILE"),
        (("--input", "other=/dev/null"), "--input names no source of the program"),
        (("--input", "orders=/nowhere.txt"), "The sample of a source does not exist"),
    ],
)
def test_wrong_input_is_refused(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text(READS_KAFKA)
    code, told = certify(tmp_path / "job.py", *options, arguments=("127.0.0.1:1",))
    assert code == 10
    assert message in told["message"]


def test_program_without_execute_is_refused(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("print(1)\n")
    code, told = certify(tmp_path / "job.py")
    assert (code, "certify needs a program that calls execute()" in told["message"]) == (10, True)

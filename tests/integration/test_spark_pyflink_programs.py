"""A PyFlink program, and the modules it imports, run unchanged: ``tidegate run --pyflink job.py``."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tidegate.cli.outcome import ExitCode

PROGRAM = """\
import pyflink.common as common
from pyflink.datastream import StreamExecutionEnvironment
from pyflink.common import Row, Types
from shop.orders import Order, Totals

def priced(order):
    from pyflink.common.types import Row as Inner
    assert Inner is Row and common.Row is Row
    return Row(name=order.name, cents=order.cents)

env = StreamExecutionEnvironment.get_execution_environment()
env.set_parallelism(2)
orders = env.from_collection([Order("tea", 250), Order("milk", 90), Order("tea", 300)])
rows = orders.map(priced, output_type=Types.ROW_NAMED(["name", "cents"], [Types.STRING(), Types.LONG()]))
rows.key_by(lambda row: row.name, key_type=Types.STRING()).process(Totals()).print()
env.execute()
"""
ORDERS = """\
from dataclasses import dataclass
from pyflink.common import Types
from pyflink.datastream import KeyedProcessFunction
from pyflink.datastream.state import ReducingStateDescriptor

@dataclass
class Order:
    name: str
    cents: int

class Totals(KeyedProcessFunction):
    def open(self, runtime_context):
        add = lambda a, b: a + b
        self.total = runtime_context.get_reducing_state(ReducingStateDescriptor("total", add, Types.LONG()))
    def process_element(self, value, ctx):
        self.total.add(value.cents)
        yield f"{ctx.get_current_key()} {self.total.get()}"
"""


def test_a_pyflink_program_and_its_modules_run_without_pyflink(tmp_path: Path) -> None:
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop" / "__init__.py").touch()
    (tmp_path / "shop" / "orders.py").write_text(ORDERS)
    (tmp_path / "job.py").write_text(PROGRAM)
    (tmp_path / "elsewhere").mkdir()
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--pyflink", "--master", "local[2]", "../job.py"]
    done = subprocess.run(command, cwd=tmp_path / "elsewhere", capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    lines = sorted(line.partition("> ")[2] for line in done.stdout.splitlines())
    assert lines == ["milk 90", "tea 250", "tea 550"]


def test_what_a_program_imports_in_vain_is_a_message(tmp_path: Path) -> None:
    (tmp_path / "job.py").write_text("from pyflink.table import StreamTableEnvironment\n")
    (tmp_path / "pyflink.py").write_text("raise SystemExit('the real one was imported')")
    command = [sys.executable, "-m", "tidegate.cli.main", "run", "--pyflink", "job.py"]
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (ExitCode.BAD_PROGRAM, "")
    assert done.stderr.startswith(
        "apache-flink is installed here too; with --pyflink it is not used\n"
        "NotInTidegateError: PyFlink's Table API is not part of Tidegate\n  found: pyflink.table.StreamTableEnvironment\n"
        "  cure: write the step with the DataStream API"
    )

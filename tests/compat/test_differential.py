"""Deterministic programs, written once, give on our engine what they give on real PyFlink (tests/compat/differential).

PyFlink's results are recorded in ``differential/recorded.json``. Every run of the tests compares the simulated engine with them.
``make test-pyflink`` compares real PyFlink and real Spark with them; ``make record-pyflink`` records what PyFlink gives now, for a
person to look at the difference before it is committed.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.compat.differential import programs
from tests.compat.differential.catalog import Case, Surroundings, cases, normalized, run
from tests.compat.pyflink_place import pyflink_python
from tests.simulation.executor import Simulated
from tidegate.datastream import StreamExecutionEnvironment

HERE = Path(__file__).parent
RECORDED = HERE / "differential" / "recorded.json"

assert programs, "imported for its catalog"


def lines(result: Any) -> list[str]:
    """A result as text: unlike Python, it does not take 1 for 1.0 or True."""
    return json.dumps(result, indent=1, sort_keys=True).splitlines()


def as_recorded(results: dict[str, Any]) -> str:
    """JSON with a line for each case, so that a difference of the file tells which ones have changed."""
    cases = [f"{json.dumps(name)}: {json.dumps(result, sort_keys=True)}" for name, result in sorted(results.items())]
    return "{\n" + ",\n".join(cases) + "\n}\n"


every_case = pytest.mark.parametrize("case", cases(), ids=str)


@pytest.fixture(scope="module")
def recorded() -> dict[str, Any]:
    """Read before PyFlink runs: when its results are recorded anew, the tests still tell which ones have changed."""
    results: dict[str, Any] = json.loads(RECORDED.read_text())
    return results


# -- the simulated engine, always


@pytest.fixture
def env(simulated: Simulated) -> StreamExecutionEnvironment:
    return simulated(seed=7)


@every_case
def test_the_simulated_engine_gives_what_pyflink_gave(
    case: Case, env: StreamExecutionEnvironment, tmp_path: Path, recorded: dict[str, Any]
) -> None:
    with contextlib.redirect_stdout(io.StringIO()) as output:

        def printed() -> list[str]:
            text = output.getvalue()
            output.seek(0)
            output.truncate()
            return text.splitlines()

        result = run(case, env, Surroundings(tmp_path, printed))
    assert lines(result) == lines(recorded.get(str(case)))


def test_what_is_recorded_are_the_results_of_the_programs_there_are(recorded: dict[str, Any]) -> None:
    assert sorted(recorded) == sorted(map(str, cases())), "`make record-pyflink` records PyFlink's results"
    errors = [name for name, result in recorded.items() if isinstance(result, dict) and "error" in result]
    assert errors == [], "PyFlink could not run these"


def test_a_comparison_by_key_sees_order_and_a_multiset_does_not() -> None:
    def by_key(record: Any) -> Any:
        return record[0]

    def compared(*records: Any, key: Any = None) -> list[str]:
        return lines(normalized(records, key))

    assert compared(("a", 1), ("a", 2), key=by_key) != compared(("a", 2), ("a", 1), key=by_key)
    assert compared(("a", 1), ("b", 2), key=by_key) == compared(("b", 2), ("a", 1), key=by_key)
    assert compared(1, 2, 2) == compared(2, 1, 2)
    assert compared(1, 2, 2) != compared(1, 2)
    different = [(1,), [1], [1.0], [True], ["1"], {1: 1}, b"1", None]
    assert len({str(compared(record)) for record in different}) == len(different)


# -- real PyFlink, real Spark: make test-pyflink


def run_everything(python: Path, package: str, target: Path) -> dict[str, Any]:
    """All cases on one engine, in one process."""
    environment = {
        **os.environ,
        "DIFFERENTIAL_API": package,
        "PATH": f"{python.parent}{os.pathsep}{os.environ['PATH']}",
    }
    log = target.with_suffix(".log")
    with log.open("w") as output:
        command = [str(python), "-m", "tests.compat.differential.run", str(target)]
        ended = subprocess.run(command, env=environment, stdout=output, stderr=output, check=False)
    assert ended.returncode == 0, f"{package} did not run: {log.read_text()[-3000:]}"
    results: dict[str, Any] = json.loads(target.read_text())
    return results


@pytest.fixture(scope="module")
def pyflink_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    results = run_everything(pyflink_python(), "pyflink", tmp_path_factory.mktemp("pyflink") / "results.json")
    if os.environ.get("TIDEGATE_RECORD_PYFLINK"):
        RECORDED.write_text(as_recorded(results))
    return results


@pytest.mark.pyflink
@pytest.mark.timeout(3600)
@every_case
def test_pyflink_gives_what_is_recorded(case: Case, pyflink_results: dict[str, Any], recorded: dict[str, Any]) -> None:
    assert lines(pyflink_results[str(case)]) == lines(recorded.get(str(case))), "make record-pyflink takes it over"


@pytest.fixture(scope="module")
def spark_results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return run_everything(Path(sys.executable), "tidegate", tmp_path_factory.mktemp("spark") / "results.json")


@pytest.mark.pyflink
@pytest.mark.timeout(3600)
@every_case
def test_spark_gives_what_pyflink_gave(case: Case, spark_results: dict[str, Any], recorded: dict[str, Any]) -> None:
    assert lines(spark_results[str(case)]) == lines(recorded.get(str(case)))

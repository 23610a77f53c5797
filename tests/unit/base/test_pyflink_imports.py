"""Imports of pyflink give Tidegate's own modules; what is not there is named."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tidegate.base import imports
from tidegate.base.errors import NotInTidegateError, ProgramError
from tidegate.base.former_names import MOVED
from tidegate.common.types import Row
from tidegate.datastream.former import TimeCharacteristic
from tidegate.table.types import DataTypes, RowType


@pytest.fixture
def _mapped() -> Iterator[None]:
    imports.install()
    yield
    imports.uninstall()


def imported(statement: str) -> dict[str, object]:
    names: dict[str, object] = {}
    exec(statement, names)
    return names


@pytest.mark.usefixtures("_mapped")
class TestMapped:
    @pytest.mark.parametrize(
        "name",
        [
            "",
            ".common",
            ".common.typeinfo",
            ".datastream",
            ".datastream.functions",
            ".datastream.connectors.file_system",
        ],
    )
    def test_a_module_is_the_same_object_by_both_names(self, name: str) -> None:
        ours = importlib.import_module(f"tidegate{name}")
        spec = ours.__spec__
        assert importlib.import_module(f"pyflink{name}") is ours
        assert ours.__spec__ is spec and ours.__name__ == f"tidegate{name}"

    def test_every_way_to_import(self) -> None:
        ours = importlib.import_module("tidegate.datastream")
        assert imported("from pyflink.datastream import MapFunction")["MapFunction"] is ours.MapFunction
        assert imported("import pyflink.datastream as d")["d"] is ours
        assert (
            imported("import pyflink.datastream\nfound = pyflink.datastream.MapFunction")["found"] is ours.MapFunction
        )
        assert imported("from pyflink import datastream")["datastream"] is ours
        assert imported("from pyflink.datastream import functions as f")["f"] is ours.functions
        assert imported("from pyflink.datastream.functions import *")["MapFunction"] is ours.MapFunction

    def test_objects_pickle_by_the_name_of_tidegate(self) -> None:
        row = imported("from pyflink.common import Row\nrow = Row(a=1)")["row"]
        data = pickle.dumps(row)
        assert b"tidegate" in data and b"pyflink" not in data
        assert pickle.loads(data) == row

    @pytest.mark.parametrize(
        ("statement", "name", "cure"),
        [
            (
                "from pyflink.datastream import Nothing",
                "datastream.Nothing",
                "docs/features.md lists what is there, and",
            ),
            ("from pyflink.datastream.functions import Nothing", "datastream.functions.Nothing", "docs/features.md"),
            ("import pyflink.datastream.nothing", "datastream.nothing", "docs/features.md"),
            (
                "from pyflink.datastream import MapFunktion",
                "datastream.MapFunktion",
                "there is pyflink.datastream.MapFunction;",
            ),
            (
                "import pyflink.dataset",
                "dataset",
                "the DataSet API was removed from Flink; use the DataStream API with",
            ),
            (
                "from pyflink.datastream.connectors.kinesis import FlinkKinesisConsumer",
                "datastream.connectors.kinesis",
                "there is no connector for Kinesis; read it with a Python DataSource (from_data_source, docs/spark.md), write",
            ),
            (
                "from pyflink.datastream.functions import SourceFunction",
                "datastream.functions.SourceFunction",
                "a SourceFunction wraps Java code, which is not run; write a Source (docs/sources-and-sinks.md)",
            ),
            ("import pyflink.java_gateway", "java_gateway", "there is no Java gateway"),
            ("import pyflink.runtime", "runtime", "docs/features.md"),
            ("from pyflink import ml", "ml", "Flink ML is not part of Tidegate"),
        ],
    )
    def test_what_is_not_there_is_named_with_a_cure(self, statement: str, name: str, cure: str) -> None:
        with pytest.raises(ImportError) as raised:
            imported(statement)
        error = raised.value
        assert isinstance(error, NotInTidegateError) and error.name == f"pyflink.{name}"
        assert str(error).startswith(
            f"The program imports a name that Tidegate does not have\n  found: pyflink.{name}\n  cure: {cure}"
        )
        assert str(pickle.loads(pickle.dumps(error))) == str(error)

    @pytest.mark.parametrize(
        ("statement", "name"),
        [
            ("from pyflink.table import StreamTableEnvironment", "table.StreamTableEnvironment"),
            ("from pyflink.table import DataTypes, EnvironmentSettings", "table.EnvironmentSettings"),
            ("from pyflink.table.expressions import col", "table.expressions"),
            ("from pyflink.table import expressions as E", "table.expressions"),
            ("import pyflink.table.udf", "table.udf"),
            ("from pyflink.table.types import VarCharType", "table.types.VarCharType"),
        ],
    )
    def test_an_import_of_the_table_api_says_what_can_be_done_instead(self, statement: str, name: str) -> None:
        with pytest.raises(NotInTidegateError) as raised:
            imported(statement)
        assert str(raised.value) == (
            f"PyFlink's Table API is not part of Tidegate\n  found: pyflink.{name}\n  cure: write the step with the DataStream "
            "API (map, key_by, window, process; KafkaSource, FileSource, FileSink), or use tables and SQL of Spark: "
            "env.from_dataframe(...) and stream.for_each_checkpoint(...), see docs/spark.md. Of pyflink.table only the types of "
            "columns are here: DataTypes, RowType"
        )

    def test_types_of_columns_are_found_in_the_table_package(self) -> None:
        found = imported(
            "from pyflink.table import DataTypes, Row\nfrom pyflink.table.types import DataTypes as D, RowType"
        )
        assert found["DataTypes"] is found["D"] is DataTypes and found["RowType"] is RowType and found["Row"] is Row

    def test_a_module_of_a_former_pyflink_is_found(self) -> None:
        found = imported("from pyflink.datastream.time_characteristic import TimeCharacteristic")
        assert found["TimeCharacteristic"] is TimeCharacteristic

    def test_former_module_name_of_tidegate_is_found_although_pyflink_has_its_package(self) -> None:
        """A snapshot of an earlier version names classes by such modules, and its job may be a PyFlink program."""
        imported("import pyflink.common, pyflink.datastream")
        for former, module in MOVED.items():
            assert importlib.import_module(former) is importlib.import_module(module)

    def test_looking_for_a_name_is_no_error(self) -> None:
        functions = imported("import pyflink.datastream.functions as f")["f"]
        assert not hasattr(functions, "Nothing")
        assert getattr(functions, "Nothing", 7) == 7
        table = imported("import pyflink.table as t")["t"]
        assert not hasattr(table, "StreamTableEnvironment")
        connectors = imported("import pyflink.datastream.connectors as c")["c"]
        assert not hasattr(connectors, "PulsarSource")

    def test_installing_again_changes_nothing(self) -> None:
        finders = list(sys.meta_path)
        imports.install()
        assert sys.meta_path == finders


def test_afterwards_nothing_is_left() -> None:
    before = list(sys.meta_path)
    imports.install()
    plain = importlib.import_module("pyflink.datastream.functions")
    imports.uninstall()
    assert sys.meta_path == before and not [name for name in sys.modules if name.split(".")[0] == "pyflink"]
    assert not hasattr(plain, "__path__") and hasattr(importlib.import_module("tidegate.datastream"), "__path__")
    with pytest.raises(ModuleNotFoundError) as raised:
        importlib.import_module("tidegate.datastream.nothing")
    assert not isinstance(raised.value, NotInTidegateError)


@pytest.fixture
def installed_pyflink(tmp_path: Path) -> str:
    """A directory with a package that pretends to be apache-flink."""
    package = tmp_path / "pyflink"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('the real one was imported')")
    return str(tmp_path)


def test_an_installed_pyflink_is_not_used_and_that_is_reported(installed_pyflink: str) -> None:
    program = "from tidegate import pyflink_compat as p; print(p.install()); import pyflink; print(pyflink.__name__)"
    command = [sys.executable, "-c", f"import sys; sys.path.insert(0, {installed_pyflink!r}); {program}"]
    assert subprocess.check_output(command, text=True).split() == ["True", "tidegate"]


def test_a_real_pyflink_that_is_loaded_already_is_not_mixed_with_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyflink", type(sys)("pyflink"))
    with pytest.raises(ProgramError) as raised:
        imports.install()
    assert str(raised.value) == (
        "Imports of pyflink can be mapped to Tidegate only before the first one\n  found: pyflink is loaded from None\n"
        "  cure: install it at the top of the program, or start it by: tidegate run --pyflink job.py"
    )

"""CSV, Parquet and Avro files: what a sink writes of rows, and what a source reads of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.compat.differential.catalog import Surroundings, program
from tests.compat.differential.engine_api import (
    CsvBulkWriters,
    CsvReaderFormat,
    CsvSchema,
    DataTypes,
    FileSink,
    FileSource,
    Row,
    Types,
    WatermarkStrategy,
)
from tests.compat.differential.file_programs import files_of

ITEM = Types.ROW_NAMED(
    ["id", "name", "price", "sold", "tags"],
    [Types.INT(), Types.STRING(), Types.DOUBLE(), Types.BOOLEAN(), Types.BASIC_ARRAY(Types.STRING())],
)
ITEMS = [
    Row(1, "plain", 1.5, True, ["a", "b"]),
    Row(-2, "two words", 1e20, False, []),
    Row(3, 'a "quote"', 0.001, True, ["x"]),
    Row(4, "comma, here", 12345678.5, False, ["y", "z"]),
    Row(5, "", -0.0, True, ["q"]),
    Row(6, "a text of more than twenty-four letters", 2.0, True, ["q"]),
    Row(7, "line\nbreak", 3.0, True, ["q"]),
    Row(8, "ümläut#-~", 3.0, True, ["q"]),
]


def columns() -> Any:
    return (
        CsvSchema.builder()
        .add_number_column("id", DataTypes.INT())
        .add_string_column("name")
        .add_number_column("price", DataTypes.DOUBLE())
        .add_boolean_column("sold")
        .add_array_column("tags", ";", DataTypes.STRING())
    )


@program(runs_itself=True, parallelisms=(1,))
def rows_written_as_csv(env: Any, surroundings: Surroundings) -> Any:
    schemas = {
        "plain": columns().build(),
        "bars": columns().set_column_separator("|").set_null_value("n/a").build(),
        "bare": columns().disable_quote_char().build(),
    }
    for name, schema in schemas.items():
        sink = FileSink.for_bulk_format(str(surroundings.directory / name), CsvBulkWriters.for_schema(schema)).build()
        env.from_collection(ITEMS, ITEM).map(lambda row: row, ITEM).sink_to(sink)
    env.execute()
    found = [(name, path) for name in schemas for path in files_of(surroundings.directory / name)]
    return [(name, path.read_text()) for name, path in found]


def read_csv(env: Any, path: Path, schema: Any) -> list[Any]:
    source = FileSource.for_record_stream_format(CsvReaderFormat.for_schema(schema), str(path)).build()
    rows = env.from_source(source, WatermarkStrategy.no_watermarks(), "csv").map(lambda row: repr(row))
    with rows.execute_and_collect() as results:
        return list(results)


@program(runs_itself=True, parallelisms=(1,))
def rows_read_from_csv(env: Any, surroundings: Surroundings) -> Any:
    path = surroundings.directory / "items.csv"
    path.write_text(
        '1,plain,1.5,true,a;b\n-2,"two ""words""",1e3,false,\n 3 , spaced ,2,TRUE,x\n4,"line\nbreak",0,false,y\n'
    )
    found = [("plain", row) for row in read_csv(env, path, columns().build())]
    path.write_text("id,name,price,sold,tags\n1,a,1,true,x\n# no comment\n".replace("# no comment\n", ""))
    found += [("header", row) for row in read_csv(env, path, columns().set_use_header().build())]
    found += [("skipped", row) for row in read_csv(env, path, columns().set_skip_first_data_row().build())]
    path.write_text("#a comment\n1|a|1|true|x\n")
    schema = columns().set_column_separator("|").set_allow_comments().set_null_value("a").build()
    return found + [("comments", row) for row in read_csv(env, path, schema)]

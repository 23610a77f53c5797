"""Text files in and out: which files are read, how lines end, what a sink writes and where."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from tests.compat.differential.catalog import Surroundings, program
from tests.compat.differential.engine_api import (
    BucketAssigner,
    Encoder,
    FileSink,
    FileSource,
    OutputFileConfig,
    RollingPolicy,
    Row,
    StreamFormat,
    Types,
    WatermarkStrategy,
)
from tests.compat.differential.typed_programs import PAIR, PERSON


def files_of(directory: Path) -> list[Path]:
    return sorted(path for path in directory.rglob("*") if path.is_file() and not path.name.startswith("."))


def lines_from(env: Any, *paths: Path, charset: str = "UTF-8") -> Any:
    source = FileSource.for_record_stream_format(StreamFormat.text_line_format(charset), *map(str, paths)).build()
    return env.from_source(source, WatermarkStrategy.no_watermarks(), "lines")


@program(parallelisms=(1, 2), runs_itself=True)
def text_files_in_and_out(env: Any, surroundings: Surroundings) -> Any:
    """Empty lines, no line end at the end, a folder below; what the sink's files hold afterwards."""
    lines, out = surroundings.directory / "in", surroundings.directory / "out"
    (lines / "deep").mkdir(parents=True)
    (lines / "a.txt").write_text("one\n\nthree")
    (lines / "deep" / "b.txt").write_text("fünf\n sechs \n")
    sink = FileSink.for_row_format(str(out), Encoder.simple_string_encoder()).build()
    lines_from(env, lines).map(lambda line: f"<{line}>", Types.STRING()).sink_to(sink)
    env.execute()
    return [line for part in files_of(out) for line in part.read_text().split("\n")[:-1]]


@program(runs_itself=True)
def which_files_are_read(env: Any, surroundings: Surroundings) -> Any:
    """Several paths; hidden files and folders are passed over, empty files have no lines, compressed ones are unpacked."""
    root = surroundings.directory / "in"
    for name in ("plain.txt", ".hidden", "_success", "folder/deep/file", ".folder/file", "_folder/file", "other"):
        path = root / "a" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")
    (root / "a" / "empty").touch()
    (root / "a" / "packed.gz").write_bytes(gzip.compress(b"packed\nlines\n"))
    (root / "single").write_text("single\n")
    with lines_from(env, root / "a", root / "single").map(lambda v: v).execute_and_collect() as lines:
        return list(lines)


@program(runs_itself=True, parallelisms=(1,))
def how_lines_end(env: Any, surroundings: Surroundings) -> Any:
    path = surroundings.directory / "lines"
    path.write_bytes(
        b"unix\nwindows\r\nmac\rtab\tinside\n\n\r\nform\x0cfeed\x0bvt\x1cfs\xc2\x85nel\xe2\x80\xa8ls\nend\r\n"
    )
    with lines_from(env, path).map(lambda v: v).execute_and_collect() as lines:
        return list(lines)


@program(runs_itself=True, parallelisms=(1,))
def charsets(env: Any, surroundings: Surroundings) -> Any:
    found = []
    for charset in ("ISO-8859-1", "UTF-16"):
        path = surroundings.directory / charset
        path.write_text("grün\nblau\n", encoding=charset)
        with lines_from(env, path, charset=charset).map(lambda v: v).execute_and_collect() as lines:
            found += list(lines)
    return found


@program(runs_itself=True, parallelisms=(1,))
def records_as_a_sink_writes_them(env: Any, surroundings: Surroundings) -> Any:
    """Java's text of a typed record."""
    streams = {
        "texts": env.from_collection(["a", "ä b", ""], Types.STRING()),
        "ints": env.from_collection([1, -2], Types.INT()),
        "doubles": env.from_collection([1.0, 1e20], Types.DOUBLE()),
        "booleans": env.from_collection([True], Types.BOOLEAN()),
        "pairs": env.from_collection([("a", 1), ("b c", 2)], PAIR),
        "people": env.from_collection([Row("a", 1), Row("b", None)], PERSON),
        "lists": env.from_collection([1]).map(lambda v: [v, 2], Types.LIST(Types.INT())),
        "maps": env.from_collection([1]).map(lambda v: {"k": v}, Types.MAP(Types.STRING(), Types.INT())),
    }
    for name, stream in streams.items():
        out = str(surroundings.directory / "out" / name)
        stream.sink_to(FileSink.for_row_format(out, Encoder.simple_string_encoder()).build())
    env.execute()
    parts = files_of(surroundings.directory / "out")
    return [(path.parents[1].name, path.read_text()) for path in parts]


@program(runs_itself=True)
def names_of_part_files(env: Any, surroundings: Surroundings) -> Any:
    """Prefix, subtask's part of the name left out, counter, suffix; no folders with the base path assigner."""
    out = surroundings.directory / "out"
    sink = (
        FileSink.for_row_format(str(out), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_output_file_config(OutputFileConfig.builder().with_part_prefix("orders").with_part_suffix(".txt").build())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    env.from_collection(["x", "y"], Types.STRING()).partition_custom(lambda k, n: k, lambda v: "xy".index(v)).map(
        lambda v: v, Types.STRING()
    ).sink_to(sink)
    env.execute()
    named = [(path.relative_to(out).as_posix(), path.read_text()) for path in files_of(out)]
    return [(name.split("-")[0], len(name.split("-")[1:-1]) > 0, name.split("-")[-1], text) for name, text in named]


@program(runs_itself=True, parallelisms=(1,))
def parts_rolled_by_size(env: Any, surroundings: Surroundings) -> Any:
    out = surroundings.directory / "out"
    policy = RollingPolicy.default_rolling_policy(part_size=20, rollover_interval=10**9, inactivity_interval=10**9)
    sink = (
        FileSink.for_row_format(str(out), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(policy)
        .build()
    )
    env.from_collection([f"line {n}" for n in range(10)], Types.STRING()).sink_to(sink)
    env.execute()
    return [path.read_text() for path in files_of(out)]

"""Settings that change how a job runs and not what it gives; ways to start one and to read what it gives."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import Surroundings, first, program, whole
from tests.compat.differential.engine_api import (
    BucketAssigner,
    CheckpointingMode,
    Configuration,
    Encoder,
    FileSink,
    NumberSequenceSource,
    RollingPolicy,
    RuntimeExecutionMode,
    Types,
    WatermarkStrategy,
)
from tests.compat.differential.file_programs import files_of
from tests.compat.differential.key_programs import SumOfKey, numbers


@program(parallelisms=(1, 2))
def the_same_with_checkpoints(env: Any) -> Any:
    env.enable_checkpointing(20)
    return numbers(env, 3000).key_by(lambda v: v % 13, Types.LONG()).process(SumOfKey())


@program(parallelisms=(1,))
def the_same_at_least_once(env: Any) -> Any:
    env.enable_checkpointing(20, CheckpointingMode.AT_LEAST_ONCE)
    return numbers(env, 1000).map(lambda v: v % 10).key_by(lambda v: v).map(lambda v: 1).key_by(lambda v: v).sum()


@program(runs_itself=True)
def files_with_checkpoints(env: Any, surroundings: Surroundings) -> Any:
    """However the parts are cut, their lines are those of the stream."""
    env.enable_checkpointing(20)
    out = surroundings.directory / "out"
    sink = (
        FileSink.for_row_format(str(out), Encoder.simple_string_encoder())
        .with_bucket_assigner(BucketAssigner.base_path_bucket_assigner())
        .with_rolling_policy(RollingPolicy.on_checkpoint_rolling_policy())
        .build()
    )
    source = env.from_source(NumberSequenceSource(1, 500), WatermarkStrategy.no_watermarks(), "numbers")
    source.map(lambda v: f"line {v}", Types.STRING()).sink_to(sink)
    env.execute()
    return [line for part in files_of(out) for line in part.read_text().splitlines()]


@program()
def the_same_however_operators_are_run(env: Any) -> Any:
    """Names, uids, chains, slots and timeouts."""
    env.set_buffer_timeout(5)
    env.set_max_parallelism(16)
    stream = env.from_collection(range(10)).name("numbers").uid("numbers")
    stream = stream.map(lambda v: v + 1).name("plus").uid("plus").disable_chaining()
    stream = stream.map(lambda v: v * 2).start_new_chain().set_description("twice").set_buffer_timeout(1)
    stream = stream.filter(lambda v: v > 4).slot_sharing_group("default").set_uid_hash("0" * 31 + "1")
    return (
        stream.key_by(lambda v: v % 3).map(lambda v: (v % 3, v)).name("keyed").uid("keyed").filter(lambda v: v[0] > 0)
    )


@program()
def the_same_without_chains(env: Any) -> Any:
    env.disable_operator_chaining()
    return env.from_collection(range(10)).map(lambda v: v + 1).filter(lambda v: v % 2).flat_map(lambda v: [v, -v])


@program(parallelisms=(1,))
def operators_of_different_parallelism(env: Any) -> Any:
    stream = env.from_collection(range(12)).map(lambda v: v * 3).set_parallelism(3)
    keyed = stream.key_by(lambda v: v % 4).map(lambda v: v + 1).set_parallelism(2).set_max_parallelism(2)
    more = env.from_source(NumberSequenceSource(100, 110), WatermarkStrategy.no_watermarks(), "more").set_parallelism(4)
    other = more.map(lambda v: v * 2).set_parallelism(3)
    return keyed.union(other).map(lambda v: -v).set_parallelism(2)


@program(parallelisms=(1,), key=first)
def automatic_mode_is_batch_for_bounded_input(env: Any) -> Any:
    env.set_runtime_mode(RuntimeExecutionMode.AUTOMATIC)
    return env.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(lambda v: v[0]).sum(1)


@program(parallelisms=(2,), key=first)
def settings_from_a_configuration(env: Any) -> Any:
    configuration = Configuration()
    configuration.set_string("execution.runtime-mode", "BATCH")
    env.configure(configuration)
    return env.from_collection([("a", 1), ("b", 2), ("a", 3)]).key_by(lambda v: v[0]).sum(1)


@program(runs_itself=True, parallelisms=(1,), key=whole)
def results_read_one_by_one(env: Any, surroundings: Surroundings) -> Any:
    stream = env.from_collection(range(5)).map(lambda v: v * v)
    read = []
    with stream.execute_and_collect("first") as iterator:
        read += [next(iterator), iterator.next()]
        read += list(iterator)
        read.append(next(iterator, "over"))
    read += stream.execute_and_collect(limit=2)
    read += stream.execute_and_collect("all of them", limit=100)
    return read


@program(parallelisms=(1,), key=whole)
def collections_of_every_form(env: Any) -> Any:
    """Ranges, tuples, sets of one, views of dicts."""
    forms: list[Any] = [range(2), (5, "a"), {7}, {"k": 1}.items(), [[]], [None]]
    streams = [env.from_collection(list(form)).map(lambda v, n=n: (n, v)) for n, form in enumerate(forms)]
    texts = streams[0].union(*streams[1:]).map(repr, Types.STRING())
    return (
        texts.key_by(lambda v: 0)
        .reduce(lambda a, b: "|".join(sorted([*a.split("|"), b])))
        .filter(lambda v: v.count("|") == 7)
    )


@program(runs_itself=True, parallelisms=(1,))
def texts_printed(env: Any, surroundings: Surroundings) -> Any:
    texts = ["plain", "", "two\nlines", "tab\t", "ümläut ✓", "'quoted'", '"double"', "null", " spaces "]
    env.from_collection(texts, Types.STRING()).print()
    env.from_collection(texts).print("pickled")
    env.from_collection([("a", "it's"), ("b", None)]).print("tuples")
    env.from_collection([1 << 70, -0.0, 1e100, (1,), [], {}, (), frozenset()]).print("objects")
    env.execute()
    return surroundings.printed()

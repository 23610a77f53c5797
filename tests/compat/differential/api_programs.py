"""Objects of the API by themselves: what rows, types, durations and settings say without a job."""

from __future__ import annotations

from typing import Any

from tests.compat.differential.catalog import Surroundings, program
from tests.compat.differential.engine_api import (
    CheckpointingMode,
    Configuration,
    Duration,
    ExternalizedCheckpointRetention,
    Instant,
    OutputTag,
    Row,
    RowKind,
    StateTtlConfig,
    Time,
    Types,
)


@program(runs_itself=True, parallelisms=(1,))
def rows(env: Any, surroundings: Surroundings) -> Any:
    person = Row("name", "age")
    ada, same = person("Ada", 36), Row(name="Ada", age=36)
    turned = Row(age=36, name="Ada")
    changed = Row(1, 2, 3)
    changed[1], changed[0] = "two", None
    named = Row(1, 2)
    named.set_field_names(["x", "y"])
    deep = Row(id=1, inner=Row(x=1, many=[Row(y=2)]))
    deleted = Row.of_kind(RowKind.DELETE, 1, "a")
    return [
        [repr(row) for row in (person, ada, turned, changed, named, deep, deleted, Row())],
        [ada == same, ada == turned, Row(1) == Row(1), Row(1) == Row(x=1), deleted == Row(1, "a"), Row(1) == (1,)],
        [hash(ada) == hash(same), len(ada), list(ada), "name" in ada, "Ada" in ada, 2 in Row(1, 2)],
        [ada.name, ada["age"], ada[0], ada[-1], changed[0:2]],
        [ada.as_dict(), deep.as_dict(), deep.as_dict(True), turned.get_fields_by_names(["name", "age"])],
        [str(kind) for kind in RowKind],
        [deleted.get_row_kind().name, [kind.name for kind in RowKind], [kind.value for kind in RowKind]],
    ]


@program(runs_itself=True, parallelisms=(1,))
def types(env: Any, surroundings: Surroundings) -> Any:
    row = Types.ROW_NAMED(["a", "b"], [Types.INT(), Types.STRING()])
    infos = [
        Types.STRING(),
        Types.BYTE(),
        Types.BOOLEAN(),
        Types.SHORT(),
        Types.INT(),
        Types.LONG(),
        Types.FLOAT(),
        Types.DOUBLE(),
        Types.CHAR(),
        Types.BIG_INT(),
        Types.BIG_DEC(),
        Types.INSTANT(),
        Types.PICKLED_BYTE_ARRAY(),
        row,
        Types.ROW([Types.INT(), row]),
        Types.TUPLE([Types.INT(), Types.STRING()]),
        Types.LIST(Types.INT()),
        Types.MAP(Types.STRING(), Types.LIST(Types.INT())),
        Types.BASIC_ARRAY(Types.STRING()),
        Types.OBJECT_ARRAY(row),
        Types.PRIMITIVE_ARRAY(Types.INT()),
    ]
    equal = [Types.INT() == Types.INT(), Types.INT() == Types.LONG(), row == Types.INT()]
    names = [row.get_field_names(), Types.ROW([Types.INT(), Types.INT()]).get_field_names()]
    return [[str(info) for info in infos], equal, names, [str(info) for info in row.get_field_types()]]


@program(runs_itself=True, parallelisms=(1,))
def types_of_streams(env: Any, surroundings: Surroundings) -> Any:
    numbers = env.from_collection([1, 2], Types.INT())
    plain = env.from_collection([1, 2])
    streams = [
        numbers,
        plain,
        numbers.map(lambda v: v),
        numbers.map(lambda v: str(v), Types.STRING()),
        numbers.filter(lambda v: True),
        numbers.union(numbers),
        numbers.rebalance(),
        numbers.key_by(lambda v: v).map(lambda v: v, Types.LONG()),
        numbers.key_by(lambda v: v).filter(lambda v: True),
        numbers.key_by(lambda v: v).reduce(lambda a, b: a + b),
        numbers.key_by(lambda v: v).sum(),
        plain.key_by(lambda v: v).sum(),
    ]
    return [str(stream.get_type()) for stream in streams]


@program(runs_itself=True, parallelisms=(1,))
def times_and_durations(env: Any, surroundings: Surroundings) -> Any:
    return [
        [Time.seconds(2).to_milliseconds(), Time.days(1).to_milliseconds(), Time.hours(1) == Time.minutes(60)],
        [Duration.of_seconds(60) == Duration.of_minutes(1), Duration.of_millis(1) == Duration.of_seconds(1)],
        [repr(Instant.of_epoch_milli(1234)), Instant.of_epoch_milli(1234).to_epoch_milli()],
        [Instant.of_epoch_milli(5) == Instant(0, 5_000_000)],
    ]


@program(runs_itself=True, parallelisms=(3,))
def settings_of_an_environment(env: Any, surroundings: Surroundings) -> Any:
    """Defaults, and what was set."""
    checkpoints = env.get_checkpoint_config()
    defaults = [
        env.get_parallelism(),
        env.get_max_parallelism(),
        env.get_buffer_timeout(),
        env.is_chaining_enabled(),
        env.get_checkpoint_interval(),
        checkpoints.get_checkpoint_timeout(),
        checkpoints.get_min_pause_between_checkpoints(),
        checkpoints.get_max_concurrent_checkpoints(),
        checkpoints.get_tolerable_checkpoint_failure_number(),
        checkpoints.is_checkpointing_enabled(),
        checkpoints.is_unaligned_checkpoints_enabled(),
        checkpoints.get_externalized_checkpoint_retention().name,
        env.get_config().get_auto_watermark_interval(),
        env.get_config().is_object_reuse_enabled(),
    ]
    env.enable_checkpointing(1234)
    enabled = [env.get_checkpointing_mode().name, checkpoints.get_checkpointing_mode().name]
    env.enable_checkpointing(1234, CheckpointingMode.AT_LEAST_ONCE)
    env.set_max_parallelism(64).set_buffer_timeout(7)
    checkpoints.set_checkpoint_timeout(5000)
    checkpoints.set_min_pause_between_checkpoints(300)
    checkpoints.set_tolerable_checkpoint_failure_number(4)
    checkpoints.set_externalized_checkpoint_retention(ExternalizedCheckpointRetention.RETAIN_ON_CANCELLATION)
    env.get_config().set_auto_watermark_interval(99)
    changed = [
        env.get_checkpoint_interval(),
        env.get_checkpointing_mode().name,
        env.get_max_parallelism(),
        env.get_buffer_timeout(),
        checkpoints.get_checkpoint_timeout(),
        checkpoints.get_min_pause_between_checkpoints(),
        checkpoints.get_max_concurrent_checkpoints(),
        checkpoints.get_tolerable_checkpoint_failure_number(),
        checkpoints.is_checkpointing_enabled(),
        checkpoints.get_externalized_checkpoint_retention().name,
        env.get_config().get_auto_watermark_interval(),
    ]
    return [defaults, enabled, changed]


@program(runs_itself=True, parallelisms=(1,))
def configurations(env: Any, surroundings: Surroundings) -> Any:
    configuration = Configuration()
    configuration.set_string("parallelism.default", "3").set_integer("pipeline.max-parallelism", 64)
    configuration.set_boolean("pipeline.object-reuse", True).set_float("a.float", 0.5)
    other = Configuration()
    other.add_all(configuration)
    other.add_all(configuration, "prefix.")
    read = [
        configuration.get_string("parallelism.default", "none"),
        configuration.get_integer("parallelism.default", 7),
        configuration.get_integer("missing", 7),
        configuration.get_boolean("pipeline.object-reuse", False),
        configuration.get_boolean("missing", False),
        configuration.get_float("a.float", 0.0),
        configuration.contains_key("pipeline.max-parallelism"),
        configuration.contains_key("missing"),
        sorted(configuration.key_set()),
        sorted(configuration.to_dict().items()),
        sorted(other.to_dict().items()),
    ]
    return [*read, configuration.remove_config("a.float"), configuration.contains_key("a.float")]


@program(runs_itself=True, parallelisms=(1,))
def time_to_live_settings(env: Any, surroundings: Surroundings) -> Any:
    plain = StateTtlConfig.new_builder(Time.seconds(3)).build()
    full = (
        StateTtlConfig.new_builder(Time.days(1))
        .update_ttl_on_read_and_write()
        .return_expired_if_not_cleaned_up()
        .cleanup_incrementally(10, True)
        .build()
    )
    return [
        [
            config.get_update_type().name,
            config.get_state_visibility().name,
            config.get_ttl().to_milliseconds(),
            config.is_enabled(),
        ]
        for config in (plain, full)
    ]


@program(runs_itself=True, parallelisms=(1,))
def operators_names_and_parallelism(env: Any, surroundings: Surroundings) -> Any:
    numbers = env.from_collection([1])
    mapped = numbers.map(lambda v: v)
    keyed = mapped.key_by(lambda v: v)
    names = [numbers, mapped, mapped.filter(lambda v: True), mapped.flat_map(lambda v: [v])]
    names += [keyed.reduce(lambda a, b: a), keyed.sum(), keyed.map(lambda v: v), keyed.filter(lambda v: True)]
    return [*(stream.get_name() for stream in names), mapped.name("renamed").get_name(), OutputTag("x").tag_id]

"""State descriptors: the name, kind and type by which a user function gets a state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from tidegate.base.arguments import expect_text, wrong
from tidegate.base.errors import StateAccessError
from tidegate.base.pickling import stored_allowed
from tidegate.state.codecs import PICKLE, TypeInfo, codec_for
from tidegate.state.refs import StateSchema
from tidegate.state.ttl import StateTtlConfig


class StateDescriptor:
    """Root of the descriptors. ``type_info`` None: values are pickled."""

    kind: ClassVar[str] = ""

    def __init__(self, name: str, type_info: TypeInfo | None) -> None:
        method = type(self).__name__
        self.name = expect_text(method, name, 'give the state a name, for example "count"')
        self.type_info = _expect_type(method, type_info)
        self._ttl_config: StateTtlConfig | None = None

    def get_name(self) -> str:
        """Return the name, which identifies the state in its operator."""
        return self.name

    def enable_time_to_live(self, ttl_config: StateTtlConfig) -> None:
        """Let entries expire. Call it before the function gets the state."""
        if not isinstance(ttl_config, StateTtlConfig):
            cure = "StateTtlConfig.new_builder(Time.seconds(1)).build()"
            raise wrong("enable_time_to_live", "a StateTtlConfig", ttl_config, cure)
        self._ttl_config = ttl_config

    @property
    def ttl(self) -> StateTtlConfig | None:
        """The configuration, if entries expire at all."""
        config = self._ttl_config
        return config if config is not None and config.is_enabled() else None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.name!r})"


class ValueStateDescriptor(StateDescriptor):
    """Describes a state with one value for each key."""

    kind = "value"

    def __init__(self, name: str, value_type_info: TypeInfo | None) -> None:
        super().__init__(name, value_type_info)


class ListStateDescriptor(StateDescriptor):
    """Describes a list for each key. ``type_info`` is the type of an element."""

    kind = "list"

    def __init__(self, name: str, elem_type_info: TypeInfo | None) -> None:
        super().__init__(name, elem_type_info)


class MapStateDescriptor(StateDescriptor):
    """Describes a map for each key. ``type_info`` is the type of a value, ``key_type_info`` of a map key."""

    kind = "map"

    def __init__(self, name: str, key_type_info: TypeInfo | None, value_type_info: TypeInfo | None) -> None:
        super().__init__(name, value_type_info)
        self.key_type_info = _expect_type(type(self).__name__, key_type_info)


class ReducingStateDescriptor(StateDescriptor):
    """``reduce_function``: a callable of two values, or an object with ``reduce``."""

    kind = "reducing"

    def __init__(self, name: str, reduce_function: Any, type_info: TypeInfo | None) -> None:
        super().__init__(name, type_info)
        self._reduce_function = reduce_function
        self.reduce: Callable[[Any, Any], Any] = getattr(reduce_function, "reduce", reduce_function)
        if not callable(self.reduce):
            cure = "for example lambda a, b: a + b"
            raise wrong(type(self).__name__, "a function of two values or a ReduceFunction", reduce_function, cure)

    def get_reduce_function(self) -> Any:
        """The function it was made with."""
        return self._reduce_function


class AggregatingStateDescriptor(StateDescriptor):
    """``agg_function``: an object with ``create_accumulator``, ``add``, ``get_result`` and ``merge``."""

    kind = "aggregating"

    def __init__(self, name: str, agg_function: Any, state_type_info: TypeInfo | None) -> None:
        super().__init__(name, state_type_info)
        if not all(callable(getattr(agg_function, part, None)) for part in ("create_accumulator", "add", "get_result")):
            cure = "write a class with create_accumulator, add, get_result and merge"
            raise wrong(type(self).__name__, "an AggregateFunction", agg_function, cure)
        self._agg_function = agg_function

    def get_agg_function(self) -> Any:
        """The function it was made with."""
        return self._agg_function


def schema_of(descriptor: StateDescriptor) -> StateSchema:
    """Return the schema of a declared state, for metadata."""
    key_type = codec_for(descriptor.key_type_info).describe if isinstance(descriptor, MapStateDescriptor) else ""
    ttl_ms = 0 if descriptor.ttl is None else descriptor.ttl.ttl_ms
    return StateSchema(descriptor.name, descriptor.kind, stored_type(descriptor), key_type, ttl_ms)


def stored_type(descriptor: StateDescriptor) -> str:
    """Return the text of the values' type. A state without a type is pickled, or refused where pickles are forbidden."""
    described = codec_for(descriptor.type_info).describe
    if described == PICKLE and not stored_allowed():
        raise StateAccessError(
            "The state declares no type, so its values are pickled; tidegate.state.allow-pickle: false forbids that",
            where=f"state {descriptor.name!r}",
            found=repr(descriptor.type_info),
            cure="declare a type, for example ValueStateDescriptor('name', Types.LONG())",
        )
    return described


def _expect_type(method: str, info: Any) -> TypeInfo | None:
    if info is None or (hasattr(info, "to_schema") and hasattr(info, "describe")):
        typed: TypeInfo | None = info
        return typed
    raise wrong(method, "type information", info, "use a type of Types, for example Types.LONG()")


def expect_descriptor(value: Any, operator: str) -> StateDescriptor:
    """Check the argument of ``get_state`` and similar methods."""
    if isinstance(value, StateDescriptor) and value.kind:
        return value
    raise StateAccessError(
        "The argument is not a state descriptor.",
        where=f"operator {operator}",
        found=f"{type(value).__name__}",
        cure='use ValueStateDescriptor("name", Types.LONG()) or another state descriptor',
    )

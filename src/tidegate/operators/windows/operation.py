"""Describe a window operator as one object that can be sent: assigner, trigger, evictor, how records are kept, window
function."""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable
from enum import Enum
from types import FunctionType, MethodType

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.common.typeinfo import TypeInformation
from tidegate.graph.transformation import OutputTag
from tidegate.operators.contracts.functions import (
    FunctionWrapper,
    SubtaskRuntimeContext,
    hook_of,
    method_of,
)
from tidegate.operators.windows.assigner import WindowAssigner, aligned_event_time
from tidegate.operators.windows.contexts import WindowContext
from tidegate.operators.windows.evictors import Evictor
from tidegate.operators.windows.sessions import is_event_time_session
from tidegate.operators.windows.trigger import Trigger
from tidegate.operators.windows.triggers import EventTimeTrigger
from tidegate.operators.windows.window import Window
from tidegate.state.descriptors import (
    AggregatingStateDescriptor,
    ListStateDescriptor,
    ReducingStateDescriptor,
    StateDescriptor,
)

CONTENTS = "window-contents"
"""The state with the contents of a window."""


class Buffered:
    """Keep the records themselves, in the order in which they came."""

    function = None
    add = staticmethod(list.append)

    def __init__(self, value_type: TypeInformation | None) -> None:
        self.type = value_type

    def descriptor(self) -> StateDescriptor:
        return ListStateDescriptor(CONTENTS, self.type)

    def of(self, values: list[UserValue]) -> UserValue:
        """Return the window function's argument for records that were kept one by one."""
        return values


class Reduced:
    """Keep one value of the records' type. ``add``: (value so far, record) -> value."""

    def __init__(self, function: UserValue, value_type: TypeInformation | None) -> None:
        self.function, self.type = function, value_type

    @property
    def add(self) -> Callable[[UserValue, UserValue], UserValue]:
        return method_of(self.function, "reduce")

    def descriptor(self) -> StateDescriptor:
        return ReducingStateDescriptor(CONTENTS, _Plain(self.add), self.type)

    def of(self, values: list[UserValue]) -> UserValue:
        reduced = values[0]
        for value in values[1:]:
            reduced = self.add(reduced, value)
        return reduced

    @property
    def can_merge(self) -> bool:
        return True

    def merge(self, first: UserValue, second: UserValue) -> UserValue:
        return self.add(first, second)

    def result(self, value: UserValue) -> UserValue:
        return value


class Aggregated:
    """Keep an accumulator. ``add``: (record, accumulator) -> accumulator."""

    def __init__(self, function: UserValue, accumulator_type: TypeInformation | None) -> None:
        self.function, self.type = function, accumulator_type

    @property
    def add(self) -> Callable[[UserValue, UserValue], UserValue]:
        add: Callable[[UserValue, UserValue], UserValue] = self.function.add
        return add

    def descriptor(self) -> StateDescriptor:
        return AggregatingStateDescriptor(CONTENTS, self.function, self.type)

    def of(self, values: list[UserValue]) -> UserValue:
        accumulator = self.function.create_accumulator()
        for value in values:
            accumulator = self.function.add(value, accumulator)
        return self.function.get_result(accumulator)

    @property
    def can_merge(self) -> bool:
        """Tell whether ``merge`` can be a real merge: a merge that does not read both accumulators is not. Flink calls
        it for merging windows only, so it is often left empty."""
        merge = getattr(self.function, "merge", None)
        plain = merge.__func__ if isinstance(merge, MethodType) else merge
        if not isinstance(plain, FunctionType):
            return callable(merge)
        code = plain.__code__
        mine = code.co_varnames[isinstance(merge, MethodType) : code.co_argcount]
        read = set[str]()
        for instruction in dis.get_instructions(code):
            if instruction.opname.startswith("LOAD_") or instruction.opname == "STORE_FAST_LOAD_FAST":
                names = instruction.argval if isinstance(instruction.argval, tuple) else (instruction.argval,)
                read.update(name for name in names if isinstance(name, str))
        return bool(code.co_flags & 0x0C) or set(mine) <= read  # *args may contain anything

    def merge(self, first: UserValue, second: UserValue) -> UserValue:
        return self.function.merge(first, second)

    def result(self, value: UserValue) -> UserValue:
        return self.function.get_result(value)


WindowCall = Callable[[UserValue, WindowContext, UserValue], Iterable[UserValue] | None]
"""(key, context, contents of the window) -> results."""
Contents = Buffered | Reduced | Aggregated


class _Plain:
    """Wrap a callable, without methods that a descriptor would prefer."""

    def __init__(self, call: UserFunction) -> None:
        self._call = call

    def __call__(self, *arguments: UserValue) -> UserValue:
        return self._call(*arguments)


class Shape(Enum):
    """Name how a window function is called."""

    NONE = "none"
    """There is no function: the contents of the window are emitted."""
    APPLY = "apply"
    """``apply(key, window, records)``"""
    PROCESS = "process"
    """``process(key, context, records)``"""
    APPLY_ALL = "apply_all"
    """``apply(window, records)``"""
    PROCESS_ALL = "process_all"
    """``process(context, records)``"""


class WindowOperation(FunctionWrapper):
    """Hold a window operation (see the module's docstring). ``late_tag``: the side output for records that are too
    late, or None. ``convert``: converts results to the declared type, or None."""

    def __init__(
        self,
        assigner: WindowAssigner[UserValue, Window],
        trigger: Trigger[UserValue, Window],
        evictor: Evictor[UserValue, Window] | None,
        lateness: int,
        late_tag: OutputTag | None,
        contents: Contents,
        function: UserValue,
        shape: Shape,
        convert: Callable[[UserValue], UserValue] | None,
    ) -> None:
        super().__init__(function)
        self.assigner, self.trigger, self.evictor, self.lateness = assigner, trigger, evictor, lateness
        self.late_tag, self.contents, self.shape, self.convert = late_tag, contents, shape, convert

    @property
    def add(self) -> UserFunction:
        """Return the function that is called for every record."""
        return self.contents.add

    @property
    def is_single(self) -> bool:
        """Tell whether the function receives one value that stands for all records."""
        return not isinstance(self.contents, Buffered)

    def open(self, runtime_context: SubtaskRuntimeContext) -> None:
        super().open(runtime_context)
        self._pass_to_contents("open", runtime_context)

    def close(self) -> None:
        super().close()
        self._pass_to_contents("close")

    def _pass_to_contents(self, hook: str, *arguments: object) -> None:
        method = None if self.contents.function is None else hook_of(self.contents.function, hook)
        if method is not None:
            method(*arguments)

    def caller(self) -> WindowCall:
        """Return (key, context, records) -> results of the window function. The context has the window."""
        function = self.wrapped
        if self.shape is Shape.APPLY:
            return lambda key, context, records: function.apply(key, context.window(), records)
        if self.shape is Shape.APPLY_ALL:
            return lambda key, context, records: function.apply(context.window(), records)
        if self.shape is Shape.PROCESS_ALL:
            return lambda key, context, records: function.process(context, records)
        if self.shape is Shape.PROCESS:
            process: WindowCall = function.process
            return process
        return lambda key, context, records: records

    def clearer(self) -> Callable[[WindowContext], None] | None:
        """Return the function that is called with the context when a window ends; None if the user's function does
        nothing then."""
        if self.shape not in (Shape.PROCESS, Shape.PROCESS_ALL):
            return None
        found: Callable[[WindowContext], None] | None = getattr(self.wrapped, "clear", None)
        return None if getattr(found, "does_nothing", False) else found


def is_sliced(operation: WindowOperation) -> bool:
    """Tell whether the windows can be sliced: they are the same for all keys, fire when the watermark passes them, and
    keep a record only once however many windows it is in."""
    aligned = aligned_event_time(operation.assigner)
    if aligned is None or type(operation.trigger) is not EventTimeTrigger or operation.evictor is not None:
        return False
    contents = operation.contents
    return aligned.size == aligned.slide or (not isinstance(contents, Buffered) and contents.can_merge)


def has_session_intervals(operation: WindowOperation) -> bool:
    """Tell whether the windows are event-time sessions that fire when the watermark passes them. An aggregation that
    opens may ask for state of its window, and gets windows of any kind."""
    if not is_event_time_session(operation.assigner) or type(operation.trigger) is not EventTimeTrigger:
        return False
    function = operation.contents.function
    opened = None if function is None else hook_of(function, "open")
    opens = opened is not None and not getattr(opened, "does_nothing", False)
    return operation.evictor is None and not opens

"""Define user functions: what is called for a record, and the life cycle of the function objects."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable
from typing import Any, Protocol

from tidegate.base.user_code import UserFunction, UserValue
from tidegate.operators.contracts.contexts import SubtaskRuntimeContext
from tidegate.operators.loop.blame import user_error


class FunctionObject:
    """The root of the function classes that users extend: the life cycle, with empty hooks. All hooks are optional.

    For an object of such a class, the method of its kind is called (``map``, ``reduce``, ...), even if the object is
    callable as well.
    """

    def open(self, runtime_context: Any) -> None:
        """Ask for state, open connections. Called once per copy, before its first record."""

    def close(self) -> None:
        """Release resources. Called at most once per copy, after its last record. Not called when a worker is
        killed."""

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        """Handle a complete checkpoint. Best effort: called before a later round's records, on the copy that runs that
        round. Ids may be skipped (a higher id covers all lower ids), and a crash loses the call."""

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        """Handle an aborted checkpoint; a later checkpoint will cover its changes. Best effort, as for a complete
        one."""


class CheckpointedFunction:
    """A function with state of its own besides keyed state: lists that are redistributed when the parallelism changes.

    Mix it into any function class, sinks too. Fields may hold data that belongs to the state between the two calls. If
    the fields of a copy are not what the last round left, the copy is discarded, and a new copy receives the state.
    """

    def initialize_state(self, context: Any) -> None:
        """Ask for states, and take over their contents. Called once per copy, before ``open``. ``context``:
        FunctionInitializationContext."""
        raise NotImplementedError

    def snapshot_state(self, context: Any) -> None:
        """Bring the states up to date. Called at the end of every round, after its last record. ``context``:
        FunctionSnapshotContext."""
        raise NotImplementedError


def checkpointed(function: object) -> CheckpointedFunction | None:
    """Return the user's function, if it has state of its own."""
    while isinstance(function, FunctionWrapper):
        function = function.wrapped
    return function if isinstance(function, CheckpointedFunction) else None


class FunctionWrapper(FunctionObject):
    """Wrap a user's function in a function object of Tidegate, and pass the life cycle on to ``wrapped``."""

    def __init__(self, wrapped: UserValue) -> None:
        self.wrapped = wrapped

    def open(self, runtime_context: Any) -> None:
        self._pass_on("open", runtime_context)

    def close(self) -> None:
        self._pass_on("close")

    def notify_checkpoint_complete(self, checkpoint_id: int) -> None:
        self._pass_on("notify_checkpoint_complete", checkpoint_id)

    def notify_checkpoint_aborted(self, checkpoint_id: int) -> None:
        self._pass_on("notify_checkpoint_aborted", checkpoint_id)

    def _pass_on(self, hook: str, *arguments: object) -> None:
        method = hook_of(self.wrapped, hook)
        if method is not None:
            method(*arguments)


def hook_of(function: object, name: str) -> UserFunction | None:
    """Return a method of the life cycle. A class stands for its constructor, and has no life cycle."""
    found: UserFunction | None = None if isinstance(function, type) else getattr(function, name, None)
    return found


def method_of(function: UserValue, method: str) -> UserFunction:
    """Return what is called for a record where a callable may stand for a function object with the method.

    A callable object of a user's own class is called, whatever methods it has besides.
    """
    handed_over: UserFunction = function
    if callable(function) and not isinstance(function, FunctionObject):
        return handed_over
    found: UserFunction = getattr(function, method, handed_over)
    return found


def is_notified(function: object) -> bool:
    """Tell whether a function has a hook for complete checkpoints, other than the empty hook that all function classes
    inherit."""
    while isinstance(function, FunctionWrapper):
        function = function.wrapped
    hook = getattr(type(function), "notify_checkpoint_complete", None)
    return hook is not None and hook is not FunctionObject.notify_checkpoint_complete


class Hooks:
    """Run the life cycle of one function object: ``open`` before its first record, ``close`` after its last record,
    notifications between.

    A closed function that is needed again, because its last round is repeated, is opened again.
    """

    def __init__(self, function: object, where: str, context: SubtaskRuntimeContext) -> None:
        """Prepare the hooks. ``context``: the argument of ``open``."""
        self._function, self._where, self.context = function, where, context
        self._is_open = False
        self.listens = is_notified(function)
        """Whether the function wants notifications of checkpoints: it is then closed after the notification of the last
        one."""

    def open(self) -> None:
        """Open the function, unless it is open."""
        if not self._is_open:
            self._is_open = True
            self._call("open", self.context)

    def close(self) -> None:
        if self._is_open:
            self._is_open = False
            self._call("close")

    def notify(self, completed: tuple[int, ...], aborted: tuple[int, ...]) -> None:
        for checkpoint_id in completed:
            self._call("notify_checkpoint_complete", checkpoint_id)
        for checkpoint_id in aborted:
            self._call("notify_checkpoint_aborted", checkpoint_id)

    def _call(self, name: str, *arguments: object) -> None:
        method = hook_of(self._function, name)
        if method is None:
            return
        try:
            method(*arguments)
        except BaseException as error:
            raise user_error(error, f"{name}() of {self._where}", None) from error


class AsyncInvoked(Protocol):
    """A function for asynchronous calls."""

    def async_invoke(self, value: UserValue) -> Coroutine[object, object, Iterable[UserValue]]: ...

    def timeout(self, value: UserValue) -> Iterable[UserValue]: ...


class RetryPredicate(Protocol):
    """Say when a retry strategy wants another call; None: never."""

    def result_predicate(self) -> Callable[[UserValue], bool] | None: ...

    def exception_predicate(self) -> Callable[[Exception], bool] | None: ...


class RetryRules(Protocol):
    """Give what the engine asks of a retry strategy."""

    def can_retry(self, current_attempts: int) -> bool: ...

    def get_backoff_time_millis(self, current_attempts: int) -> int: ...

    def get_retry_predicate(self) -> RetryPredicate: ...

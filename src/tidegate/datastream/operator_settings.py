"""Settings of one operator, shared by streams and sinks: name, uid, parallelism, chaining."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Self

from tidegate.base.arguments import expect_int, expect_text, wrong
from tidegate.base.errors import ProgramError
from tidegate.base.user_code import calling_line
from tidegate.datastream.slot_sharing_group import SlotSharingGroup
from tidegate.graph.transformation import ChainingStrategy, Transformation

if TYPE_CHECKING:
    from tidegate.datastream.stream_execution_environment import StreamExecutionEnvironment


class OperatorSettings:
    """The operators of a program are frozen; a setting replaces the entry in the environment's registry."""

    _env: StreamExecutionEnvironment

    def _operator(self, method: str) -> Transformation:
        """The operator this object stands for; raises if there is none."""
        raise NotImplementedError

    def name(self, name: str) -> Self:
        """How the operator is called in logs, errors and the web page."""
        return self._change("name", name=expect_text("name", name, 'for example "Count orders"'), is_named=True)

    def uid(self, uid: str) -> Self:
        """The operator's identity over changes of the program: state is found by it. Unique in the program."""
        text = expect_text("uid", uid, 'for example "count-orders"')
        return self._change("uid", uid=text, uid_place=calling_line())

    def set_uid_hash(self, uid_hash: str) -> Self:
        """The identity itself, 32 hexadecimal digits, instead of one made from a uid."""
        if not isinstance(uid_hash, str) or len(uid_hash) != 32 or set(uid_hash.lower()) - set("0123456789abcdef"):
            raise wrong("set_uid_hash", "32 hexadecimal digits", uid_hash, "as a log or a checkpoint shows them")
        return self._change("set_uid_hash", uid_hash=uid_hash.lower(), uid_place=calling_line())

    def set_parallelism(self, parallelism: int) -> Self:
        """The number of subtasks."""
        limit = self._operator("set_parallelism").max_parallelism
        return self._change("set_parallelism", parallelism=_count("set_parallelism", parallelism, limit))

    def set_description(self, description: str) -> Self:
        """A longer text for the web page."""
        return self._change("set_description", description=description)

    def disable_chaining(self) -> Self:
        """The operator is fused neither with what comes before nor with what comes after."""
        return self._change("disable_chaining", chaining=ChainingStrategy.NEVER)

    def slot_sharing_group(self, slot_sharing_group: str | SlotSharingGroup) -> Self:
        """Kept, without effect: Spark places tasks."""
        if isinstance(slot_sharing_group, SlotSharingGroup):
            return self._change("slot_sharing_group", slot_sharing_group=slot_sharing_group.get_name())
        name = expect_text("slot_sharing_group", slot_sharing_group, "a name or a SlotSharingGroup")
        return self._change("slot_sharing_group", slot_sharing_group=name)

    def _change(self, method: str, **fields: Any) -> Self:
        self._env._replace(self._operator(method).id, **fields)
        return self


def _count(method: str, value: int, limit: int | None) -> int:
    cure = "give the number of subtasks, at least 1"
    if expect_int(method, value, cure) < 1:
        raise ProgramError(f"{method} takes at least 1", found=str(value), cure=cure)
    if limit is not None and value > limit:
        raise ProgramError(
            "The parallelism of an operator lies between 1 and its maximum parallelism",
            where=method,
            found=f"parallelism {value}, maximum {limit}",
            cure="a collection source and what force_non_parallel() was called on stay at 1; else raise the maximum first",
        )
    return value


class StreamOperatorSettings(OperatorSettings):
    """What can be set for an operator with output, beyond what a sink has."""

    def get_name(self) -> str:
        """The operator's name."""
        return self._operator("get_name").name

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """The number of key groups. State is bound to it: it cannot change after the first start."""
        return self._change(
            "set_max_parallelism", max_parallelism=_count("set_max_parallelism", max_parallelism, 1 << 15)
        )

    def force_non_parallel(self) -> Self:
        """One subtask, now and after every rescale."""
        return self._change("force_non_parallel", parallelism=1, max_parallelism=1)

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """The longest time a record of this operator waits for a round; -1: as the environment says."""
        value = expect_int("set_buffer_timeout", timeout_millis, "milliseconds, or -1")
        if value < -1:
            raise ProgramError("set_buffer_timeout takes at least -1", found=str(value), cure="milliseconds, or -1")
        return self._change("set_buffer_timeout", buffer_timeout_ms=None if value == -1 else value)

    def start_new_chain(self) -> Self:
        """The operator is not fused with what comes before."""
        return self._change("start_new_chain", chaining=ChainingStrategy.HEAD)

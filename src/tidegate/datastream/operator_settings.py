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
        """Return the operator of this object; raise if there is none."""
        raise NotImplementedError

    def name(self, name: str) -> Self:
        """Set the operator's name in logs, errors and the web page."""
        return self._change("name", name=expect_text("name", name, 'for example "Count orders"'), is_named=True)

    def uid(self, uid: str) -> Self:
        """Set the operator's identity across changes of the program: its state is found by the uid. Unique in the program."""
        text = expect_text("uid", uid, 'for example "count-orders"')
        return self._change("uid", uid=text, uid_place=calling_line())

    def set_uid_hash(self, uid_hash: str) -> Self:
        """Set the identity itself, 32 hexadecimal digits, instead of a uid."""
        if not isinstance(uid_hash, str) or len(uid_hash) != 32 or set(uid_hash.lower()) - set("0123456789abcdef"):
            raise wrong("set_uid_hash", "32 hexadecimal digits", uid_hash, "copy the hash from a log or a checkpoint")
        return self._change("set_uid_hash", uid_hash=uid_hash.lower(), uid_place=calling_line())

    def set_parallelism(self, parallelism: int) -> Self:
        """Set the number of subtasks."""
        limit = self._operator("set_parallelism").max_parallelism
        return self._change("set_parallelism", parallelism=_count("set_parallelism", parallelism, limit))

    def set_description(self, description: str) -> Self:
        """Set a longer text for the web page."""
        return self._change("set_description", description=description)

    def disable_chaining(self) -> Self:
        """Do not chain the operator, neither with upstream nor with downstream operators."""
        return self._change("disable_chaining", chaining=ChainingStrategy.NEVER)

    def slot_sharing_group(self, slot_sharing_group: str | SlotSharingGroup) -> Self:
        """Accept the group without effect: Spark places tasks."""
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
            "The parallelism of an operator exceeds its maximum parallelism",
            where=method,
            found=f"parallelism {value}, maximum {limit}",
            cure="raise the maximum first; a collection source and an operator with force_non_parallel() stay at 1",
        )
    return value


class StreamOperatorSettings(OperatorSettings):
    """Settings of an operator with output, which a sink does not have."""

    def get_name(self) -> str:
        """Return the operator's name."""
        return self._operator("get_name").name

    def set_max_parallelism(self, max_parallelism: int) -> Self:
        """Set the number of key groups. State depends on it: it cannot change after the first start."""
        return self._change(
            "set_max_parallelism", max_parallelism=_count("set_max_parallelism", max_parallelism, 1 << 15)
        )

    def force_non_parallel(self) -> Self:
        """Run the operator in one subtask, also after a rescale."""
        return self._change("force_non_parallel", parallelism=1, max_parallelism=1)

    def set_buffer_timeout(self, timeout_millis: int) -> Self:
        """Set the longest time a record of this operator waits for a round; -1: the environment's setting."""
        value = expect_int("set_buffer_timeout", timeout_millis, "milliseconds, or -1")
        if value < -1:
            raise ProgramError("set_buffer_timeout takes at least -1", found=str(value), cure="milliseconds, or -1")
        return self._change("set_buffer_timeout", buffer_timeout_ms=None if value == -1 else value)

    def start_new_chain(self) -> Self:
        """Do not chain the operator with upstream operators."""
        return self._change("start_new_chain", chaining=ChainingStrategy.HEAD)

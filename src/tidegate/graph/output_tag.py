"""Define the tag of a side output."""

from __future__ import annotations

from tidegate.base.errors import ArgumentTypeError
from tidegate.common.typeinfo import TypeInformation


class OutputTag:
    """Name a side output. A process function emits to it with ``yield tag, value``; ``DataStream.get_side_output(tag)``
    reads it.

    Two tags with the same id are the same side output. A side output without a reader is dropped.
    """

    __slots__ = ("tag_id", "type_info")

    def __init__(self, tag_id: str, type_info: TypeInformation | None = None) -> None:
        if not isinstance(tag_id, str) or not tag_id:
            raise ArgumentTypeError(
                "The id of an OutputTag must be a non-empty text",
                found=repr(tag_id),
                cure='OutputTag("late-orders", Types.STRING())',
            )
        self.tag_id = tag_id
        self.type_info = type_info

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OutputTag) and other.tag_id == self.tag_id

    def __hash__(self) -> int:
        return hash(self.tag_id)

    def __repr__(self) -> str:
        return f"OutputTag({self.tag_id!r})"

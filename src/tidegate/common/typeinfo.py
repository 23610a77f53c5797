"""Type information: the types of a stream's records and a state's values, with PyFlink's names.

A type serves two ends here: ``to_schema`` gives msgspec's annotation, so that typed state and typed keys are stored
compactly without pickle, and ``describe`` a stable text that checkpoint metadata keeps to notice a changed type.
"""

from __future__ import annotations

import datetime
import decimal
from abc import ABC, abstractmethod
from enum import Enum
from typing import TYPE_CHECKING, Annotated, Any, Optional

import msgspec

from tidegate.base.arguments import wrong
from tidegate.base.errors import ProgramError
from tidegate.base.generics import Generic, TypeVar
from tidegate.base.plain_text import count
from tidegate.common.time import Instant

__all__ = [
    "BasicArrayTypeInfo",
    "BasicType",
    "BasicTypeInfo",
    "DateTypeInfo",
    "ExternalTypeInfo",
    "InstantTypeInfo",
    "ListTypeInfo",
    "LocalTimeTypeInfo",
    "MapTypeInfo",
    "ObjectArrayTypeInfo",
    "PickledBytesTypeInfo",
    "PrimitiveArrayTypeInfo",
    "RowTypeInfo",
    "SqlTimeTypeInfo",
    "TimeTypeInfo",
    "TimestampTypeInfo",
    "TupleTypeInfo",
    "TypeInformation",
    "Types",
]


if TYPE_CHECKING:
    from tidegate.common.types import Row  # noqa: F401 - a forward reference

Value = TypeVar("Value", covariant=True, default=Any)
E = TypeVar("E", default=Any)
K = TypeVar("K", default=Any)
V = TypeVar("V", default=Any)


class TypeInformation(Generic[Value], ABC):
    """Root of all types. Immutable, equal by structure, hashable."""

    @abstractmethod
    def describe(self) -> str:
        """Return a text that is the same in all versions, e.g. ``TUPLE<LONG, STRING>``. Checkpoint metadata contains it."""

    def to_schema(self) -> Any | None:
        """Return an annotation for msgspec, or None: values of this type are pickled."""
        return None

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TypeInformation) and self.describe() == other.describe()

    def __hash__(self) -> int:
        return hash(self.describe())


def _expect_type(method: str, value: Any) -> TypeInformation[Any]:
    if not isinstance(value, TypeInformation):
        raise wrong(method, "type information", value, "use a type of Types, for example Types.STRING()")
    return value


def _nested(info: TypeInformation) -> Any | None:
    """Return the schema of a part: unlike a whole value, a part may be None."""
    schema = info.to_schema()
    return None if schema is None else Optional[schema]  # noqa: UP045 - built at run time


class BasicType(Enum):
    """The kinds of basic types."""

    STRING = "String"
    BYTE = "Byte"
    BOOLEAN = "Boolean"
    SHORT = "Short"
    INT = "Integer"
    LONG = "Long"
    FLOAT = "Float"
    DOUBLE = "Double"
    CHAR = "Char"
    BIG_INT = "BigInteger"
    BIG_DEC = "BigDecimal"
    INSTANT = "Instant"


INTEGER_BITS = {"BYTE": 8, "SHORT": 16, "INT": 32, "LONG": 64}


def _of_bits(bits: int) -> Any:
    return Annotated[int, msgspec.Meta(ge=-1 << bits - 1, le=(1 << bits - 1) - 1)]


# BIG_INT is missing: msgspec's integers have at most 64 bits
_BASIC_SCHEMAS: dict[BasicType, Any] = {
    BasicType.STRING: str,
    BasicType.BYTE: _of_bits(8),
    BasicType.BOOLEAN: bool,
    BasicType.SHORT: _of_bits(16),
    BasicType.INT: _of_bits(32),
    BasicType.LONG: _of_bits(64),
    BasicType.FLOAT: float,
    BasicType.DOUBLE: float,
    BasicType.CHAR: str,
    BasicType.BIG_DEC: decimal.Decimal,
    BasicType.INSTANT: Instant,
}


class BasicTypeInfo(TypeInformation[Value]):
    """Numbers, texts, booleans."""

    def __init__(self, basic_type: BasicType) -> None:
        self._basic_type = basic_type

    def describe(self) -> str:
        return self._basic_type.name

    def to_schema(self) -> Any | None:
        return _BASIC_SCHEMAS.get(self._basic_type)

    def __repr__(self) -> str:
        return self._basic_type.value

    @staticmethod
    def STRING_TYPE_INFO() -> BasicTypeInfo[str]:
        """Texts."""
        return BasicTypeInfo(BasicType.STRING)

    @staticmethod
    def BOOLEAN_TYPE_INFO() -> BasicTypeInfo[bool]:
        """True and False."""
        return BasicTypeInfo(BasicType.BOOLEAN)

    @staticmethod
    def BYTE_TYPE_INFO() -> BasicTypeInfo[int]:
        """Integers of 8 bits."""
        return BasicTypeInfo(BasicType.BYTE)

    @staticmethod
    def SHORT_TYPE_INFO() -> BasicTypeInfo[int]:
        """Integers of 16 bits."""
        return BasicTypeInfo(BasicType.SHORT)

    @staticmethod
    def INT_TYPE_INFO() -> BasicTypeInfo[int]:
        """Integers of 32 bits."""
        return BasicTypeInfo(BasicType.INT)

    @staticmethod
    def LONG_TYPE_INFO() -> BasicTypeInfo[int]:
        """Integers of 64 bits."""
        return BasicTypeInfo(BasicType.LONG)

    @staticmethod
    def FLOAT_TYPE_INFO() -> BasicTypeInfo[float]:
        """Floats of 32 bits."""
        return BasicTypeInfo(BasicType.FLOAT)

    @staticmethod
    def DOUBLE_TYPE_INFO() -> BasicTypeInfo[float]:
        """Floats of 64 bits."""
        return BasicTypeInfo(BasicType.DOUBLE)

    @staticmethod
    def CHAR_TYPE_INFO() -> BasicTypeInfo[str]:
        """Single characters."""
        return BasicTypeInfo(BasicType.CHAR)

    @staticmethod
    def BIG_INT_TYPE_INFO() -> BasicTypeInfo[int]:
        """Integers of any size."""
        return BasicTypeInfo(BasicType.BIG_INT)

    @staticmethod
    def BIG_DEC_TYPE_INFO() -> BasicTypeInfo[decimal.Decimal]:
        """Decimals."""
        return BasicTypeInfo(BasicType.BIG_DEC)

    @staticmethod
    def INSTANT_TYPE_INFO() -> InstantTypeInfo:
        """``Instant``: points in time."""
        return InstantTypeInfo(BasicType.INSTANT)


class InstantTypeInfo(BasicTypeInfo[Instant]):
    """Points in time as ``tidegate.common.Instant``."""


class DecimalTypeInfo(BasicTypeInfo[decimal.Decimal]):
    """Decimals of ``precision`` digits, ``scale`` of them after the decimal point, for columns of files. Otherwise the same as
    BIG_DEC. ``exact``: a decimal with more digits is refused; else it is rounded, or None."""

    def __init__(self, precision: int, scale: int, *, exact: bool = True) -> None:
        super().__init__(BasicType.BIG_DEC)
        self.precision, self.scale, self.exact = precision, scale, exact

    def __repr__(self) -> str:
        return f"DECIMAL({self.precision}, {self.scale})"


class DateTypeInfo(TypeInformation[datetime.date]):
    """``datetime.date``."""

    def describe(self) -> str:
        return "SQL_DATE"

    def to_schema(self) -> Any | None:
        return datetime.date

    def __repr__(self) -> str:
        return "DateTypeInfo"


class TimeTypeInfo(TypeInformation[datetime.time]):
    """``datetime.time``."""

    def describe(self) -> str:
        return "SQL_TIME"

    def to_schema(self) -> Any | None:
        return datetime.time

    def __repr__(self) -> str:
        return "TimeTypeInfo"


class TimestampTypeInfo(TypeInformation[datetime.datetime]):
    """``datetime.datetime``."""

    def describe(self) -> str:
        return "SQL_TIMESTAMP"

    def to_schema(self) -> Any | None:
        return datetime.datetime

    def __repr__(self) -> str:
        return "TimestampTypeInfo"


class LocalTimeTypeInfo(TypeInformation[Any]):
    """``datetime.date``, ``time`` and ``datetime`` to the microsecond (Java's ``LocalDate`` and related classes)."""

    class TimeType(Enum):
        """Which of the three it is."""

        LOCAL_DATE = 0
        LOCAL_TIME = 1
        LOCAL_DATE_TIME = 2

    def __init__(self, time_type: TimeType) -> None:
        self._time_type = time_type

    def describe(self) -> str:
        return self._time_type.name

    def to_schema(self) -> Any | None:
        return (datetime.date, datetime.time, datetime.datetime)[self._time_type.value]

    def __repr__(self) -> str:
        return f"LocalTimeTypeInfo<{self._time_type.name}>"


class SqlTimeTypeInfo:
    """The three SQL time types by name."""

    @staticmethod
    def DATE() -> DateTypeInfo:
        """``datetime.date``."""
        return DateTypeInfo()

    @staticmethod
    def TIME() -> TimeTypeInfo:
        """``datetime.time``."""
        return TimeTypeInfo()

    @staticmethod
    def TIMESTAMP() -> TimestampTypeInfo:
        """``datetime.datetime`` without a time zone."""
        return TimestampTypeInfo()


class PickledBytesTypeInfo(TypeInformation[Any]):
    """Any Python object: the type of a stream without a declared type."""

    def describe(self) -> str:
        return "pickle"

    def __repr__(self) -> str:
        return "PickledByteArrayTypeInfo"


class ElementTypeInfo(TypeInformation[list[E]], Generic[E]):
    """Shared by all sequences of one element type."""

    _name = ""

    def __init__(self, element_type: TypeInformation[E]) -> None:
        self._element_type: TypeInformation[E] = _expect_type(type(self).__name__, element_type)

    @property
    def elem_type(self) -> TypeInformation[E]:
        """The type of every element."""
        return self._element_type

    def describe(self) -> str:
        return f"{self._name}<{self._element_type.describe()}>"

    def to_schema(self) -> Any | None:
        element = _nested(self._element_type)
        return None if element is None else list[element]  # type: ignore[valid-type]

    def __repr__(self) -> str:
        return f"{type(self).__name__}<{self._element_type}>"


class ListTypeInfo(ElementTypeInfo[E]):
    """A list of elements of one type."""

    _name = "LIST"


_PRIMITIVES = frozenset(["BOOLEAN", "BYTE", "SHORT", "INT", "LONG", "FLOAT", "DOUBLE", "CHAR"])


class PrimitiveArrayTypeInfo(ElementTypeInfo[Any]):
    """A list of numbers, booleans or characters; of BYTE: a ``bytes``."""

    _name = "PRIMITIVE_ARRAY"

    def __init__(self, element_type: TypeInformation) -> None:
        super().__init__(element_type)
        if element_type.describe() not in _PRIMITIVES:
            raise wrong(
                "Types.PRIMITIVE_ARRAY",
                "a primitive element type",
                element_type,
                "use Types.BASIC_ARRAY, Types.OBJECT_ARRAY or Types.LIST",
            )

    def to_schema(self) -> Any | None:
        return bytes if self._element_type.describe() == "BYTE" else super().to_schema()


class BasicArrayTypeInfo(ElementTypeInfo[E]):
    """A list of basic values, each of which may be None."""

    _name = "BASIC_ARRAY"

    def __init__(self, element_type: TypeInformation[E]) -> None:
        super().__init__(element_type)
        if not isinstance(element_type, BasicTypeInfo):
            raise wrong(
                "Types.BASIC_ARRAY", "a basic element type", element_type, "use Types.OBJECT_ARRAY or Types.LIST"
            )


class ObjectArrayTypeInfo(ElementTypeInfo[E]):
    """A list of elements of any one type."""

    _name = "OBJECT_ARRAY"


class MapTypeInfo(TypeInformation[dict[K, V]], Generic[K, V]):
    """A dict with keys of one type and values of one type."""

    def __init__(self, key_type_info: TypeInformation[K], value_type_info: TypeInformation[V]) -> None:
        self._key_type_info: TypeInformation[K] = _expect_type("Types.MAP", key_type_info)
        self._value_type_info: TypeInformation[V] = _expect_type("Types.MAP", value_type_info)

    @property
    def key_type(self) -> TypeInformation[K]:
        """The type of every key."""
        return self._key_type_info

    @property
    def value_type(self) -> TypeInformation[V]:
        """The type of every value."""
        return self._value_type_info

    def describe(self) -> str:
        return f"MAP<{self._key_type_info.describe()}, {self._value_type_info.describe()}>"

    def to_schema(self) -> Any | None:
        key, value = self._key_type_info.to_schema(), _nested(self._value_type_info)
        return None if key is None or value is None else dict[key, value]  # type: ignore[valid-type]

    def __repr__(self) -> str:
        return f"MapTypeInfo<{self._key_type_info}, {self._value_type_info}>"


class TupleTypeInfo(TypeInformation[tuple[Any, ...]]):
    """A Python tuple with a type for each position."""

    def __init__(self, field_types: list[TypeInformation]) -> None:
        self._field_types = [_expect_type("Types.TUPLE", info) for info in field_types]

    def get_field_types(self) -> list[TypeInformation]:
        """In the order of the fields."""
        return list(self._field_types)

    def describe(self) -> str:
        return f"TUPLE<{', '.join(info.describe() for info in self._field_types)}>"

    def to_schema(self) -> Any | None:
        parts = [_nested(info) for info in self._field_types]
        return None if any(part is None for part in parts) else tuple[tuple(parts)]  # type: ignore[misc]

    def __repr__(self) -> str:
        return f"TupleTypeInfo({', '.join(map(str, self._field_types))})"


class RowTypeInfo(TypeInformation["Row"]):
    """A ``Row`` with a type for each field, and names: ``f0, f1, ...`` where none are given."""

    def __init__(self, field_types: list[TypeInformation], field_names: list[str] | None = None) -> None:
        self._field_types = [_expect_type("Types.ROW", info) for info in field_types]
        if field_names is not None and len(field_names) != len(field_types):
            raise ProgramError(
                "The named row type has different numbers of names and types",
                where="Types.ROW_NAMED",
                found=f"{count(len(field_names), 'name')} for {count(len(field_types), 'type')}",
            )
        self._named = field_names is not None
        self._field_names = list(field_names) if field_names is not None else [f"f{n}" for n in range(len(field_types))]

    def get_field_names(self) -> list[str]:
        """In the order of the fields."""
        return list(self._field_names)

    def get_field_index(self, field_name: str) -> int:
        """Return the position of the field; ValueError if there is none of that name, -1 for a type without names."""
        return self._field_names.index(field_name) if self._named else -1

    def get_field_types(self) -> list[TypeInformation]:
        """In the order of the fields."""
        return list(self._field_types)

    def describe(self) -> str:
        fields = zip(self._field_names, self._field_types, strict=True)
        return f"ROW<{', '.join(f'{name}: {info.describe()}' for name, info in fields)}>"

    def __eq__(self, other: object) -> bool:
        """Compare as in PyFlink, without names; ``describe`` contains the names."""
        return isinstance(other, RowTypeInfo) and self._field_types == other._field_types

    def __hash__(self) -> int:
        return hash(tuple(self._field_types))

    def __repr__(self) -> str:
        if not self._named:
            return f"RowTypeInfo({', '.join(map(str, self._field_types))})"
        fields = zip(self._field_names, self._field_types, strict=True)
        return f"RowTypeInfo({', '.join(f'{name}: {info}' for name, info in fields)})"


class ExternalTypeInfo(TypeInformation[Value]):
    """Another type under Flink's name for tables; its values are those of that type."""

    def __init__(self, type_info: TypeInformation[Value]) -> None:
        self.type_info: TypeInformation[Value] = _expect_type("ExternalTypeInfo", type_info)

    def describe(self) -> str:
        return self.type_info.describe()

    def to_schema(self) -> Any | None:
        return self.type_info.to_schema()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ExternalTypeInfo) and self.type_info == other.type_info

    def __hash__(self) -> int:
        return hash(self.type_info)

    def __repr__(self) -> str:
        return f"ExternalTypeInfo<{self.type_info}>"


def is_bytes(info: TypeInformation) -> bool:
    """Return whether values of the type are ``bytes``."""
    return isinstance(info, PrimitiveArrayTypeInfo) and info.elem_type.describe() == "BYTE"


class Types:
    """The types a program may use, by name."""

    STRING = staticmethod(BasicTypeInfo.STRING_TYPE_INFO)
    BYTE = staticmethod(BasicTypeInfo.BYTE_TYPE_INFO)
    BOOLEAN = staticmethod(BasicTypeInfo.BOOLEAN_TYPE_INFO)
    SHORT = staticmethod(BasicTypeInfo.SHORT_TYPE_INFO)
    INT = staticmethod(BasicTypeInfo.INT_TYPE_INFO)
    LONG = staticmethod(BasicTypeInfo.LONG_TYPE_INFO)
    FLOAT = staticmethod(BasicTypeInfo.FLOAT_TYPE_INFO)
    DOUBLE = staticmethod(BasicTypeInfo.DOUBLE_TYPE_INFO)
    CHAR = staticmethod(BasicTypeInfo.CHAR_TYPE_INFO)
    BIG_INT = staticmethod(BasicTypeInfo.BIG_INT_TYPE_INFO)
    BIG_DEC = staticmethod(BasicTypeInfo.BIG_DEC_TYPE_INFO)
    INSTANT = staticmethod(BasicTypeInfo.INSTANT_TYPE_INFO)
    SQL_DATE = staticmethod(SqlTimeTypeInfo.DATE)
    SQL_TIME = staticmethod(SqlTimeTypeInfo.TIME)
    SQL_TIMESTAMP = staticmethod(SqlTimeTypeInfo.TIMESTAMP)

    @staticmethod
    def PICKLED_BYTE_ARRAY() -> PickledBytesTypeInfo:
        """Return the type of any Python object: the default."""
        return PickledBytesTypeInfo()

    @staticmethod
    def ROW(field_types: list[TypeInformation]) -> RowTypeInfo:
        """``Row`` with fields of these types, by position."""
        return RowTypeInfo(field_types)

    @staticmethod
    def ROW_NAMED(field_names: list[str], field_types: list[TypeInformation]) -> RowTypeInfo:
        """``Row`` with fields of these names and types."""
        return RowTypeInfo(field_types, field_names)

    @staticmethod
    def TUPLE(field_types: list[TypeInformation]) -> TupleTypeInfo:
        """Tuples with fields of these types."""
        return TupleTypeInfo(field_types)

    @staticmethod
    def PRIMITIVE_ARRAY(element_type: TypeInformation) -> PrimitiveArrayTypeInfo:
        """Lists of numbers or bools, none of which is None."""
        return PrimitiveArrayTypeInfo(element_type)

    @staticmethod
    def BASIC_ARRAY(element_type: TypeInformation[E]) -> BasicArrayTypeInfo[E]:
        """Lists of elements of a basic type, or None."""
        return BasicArrayTypeInfo(element_type)

    @staticmethod
    def OBJECT_ARRAY(element_type: TypeInformation[E]) -> ObjectArrayTypeInfo[E]:
        """Lists of elements of any type."""
        return ObjectArrayTypeInfo(element_type)

    @staticmethod
    def MAP(key_type_info: TypeInformation[K], value_type_info: TypeInformation[V]) -> MapTypeInfo[K, V]:
        """Dicts with keys and values of these types."""
        return MapTypeInfo(key_type_info, value_type_info)

    @staticmethod
    def LIST(element_type_info: TypeInformation[E]) -> ListTypeInfo[E]:
        """Lists of elements of this type."""
        return ListTypeInfo(element_type_info)

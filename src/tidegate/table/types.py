"""Table types by name, for the formats whose columns are declared with them; each stands for a type of ``Types``.

A format takes ``DataTypes.ROW([DataTypes.FIELD("id", DataTypes.INT()), ...])`` as PyFlink's do, or ``Types.ROW_NAMED`` at once.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tidegate.base.arguments import wrong
from tidegate.common.typeinfo import DecimalTypeInfo, LocalTimeTypeInfo, RowTypeInfo, TypeInformation, Types
from tidegate.common.types import Row, RowKind

__all__ = ["DataType", "DataTypes", "Row", "RowField", "RowKind", "RowType"]

MOST_DIGITS = 38
"""Of a decimal, as in Flink and Spark."""


@dataclass(frozen=True)
class DataType:
    """``info``: the type of its values."""

    name: str
    info: TypeInformation
    nullable: bool = True

    def not_null(self) -> DataType:
        return DataType(self.name, self.info, False)

    def __repr__(self) -> str:
        return self.name + ("" if self.nullable else " NOT NULL")


@dataclass(frozen=True)
class RowField:
    name: str
    data_type: DataType
    description: str | None = None


class RowType(DataType):
    """Fields with names. ``RowType([...])``, ``RowType().add("id", DataTypes.INT())`` and ``DataTypes.ROW([...])`` are the same."""

    fields: list[RowField]

    def __init__(self, fields: list[RowField] | None = None, nullable: bool = True) -> None:
        given = list(fields or [])
        for field in given:
            if not isinstance(field, RowField):
                raise wrong("RowType", "a list of fields", field, 'DataTypes.FIELD("id", DataTypes.INT())')
        info = RowTypeInfo([field.data_type.info for field in given], [field.name for field in given])
        super().__init__(f"ROW<{', '.join(f'`{f.name}` {f.data_type}' for f in given)}>", info, nullable)
        self.__dict__["fields"] = given

    @property
    def names(self) -> list[str]:
        """Of the fields, in order."""
        return [field.name for field in self.fields]

    def add(self, field: RowField | str, data_type: DataType | None = None) -> RowType:
        """This type with one more field: a ``RowField``, or a name and a type."""
        if isinstance(field, str):
            if not isinstance(data_type, DataType):
                raise wrong("RowType.add", "a type for the name", data_type, 'add("id", DataTypes.INT())')
            field = RowField(field, data_type)
        # As in PyFlink: the type itself grows
        self.__dict__.update(RowType([*self.fields, field], self.nullable).__dict__)
        return self

    def not_null(self) -> RowType:
        return RowType(self.fields, False)

    def __iter__(self) -> Iterator[RowField]:
        return iter(self.fields)

    def __len__(self) -> int:
        return len(self.fields)


class DataTypes:
    """The table types that columns of files can have."""

    @staticmethod
    def STRING(nullable: bool = True) -> DataType:
        """A column of texts."""
        return DataType("STRING", Types.STRING(), nullable)

    @staticmethod
    def CHAR(length: int, nullable: bool = True) -> DataType:
        """A column of texts. The length is not checked."""
        return DataType(f"CHAR({length})", Types.STRING(), nullable)

    @staticmethod
    def VARCHAR(length: int, nullable: bool = True) -> DataType:
        """A column of texts. The length is not checked."""
        return DataType(f"VARCHAR({length})", Types.STRING(), nullable)

    @staticmethod
    def BOOLEAN(nullable: bool = True) -> DataType:
        """A column of booleans."""
        return DataType("BOOLEAN", Types.BOOLEAN(), nullable)

    @staticmethod
    def TINYINT(nullable: bool = True) -> DataType:
        """A column of 8-bit integers."""
        return DataType("TINYINT", Types.BYTE(), nullable)

    @staticmethod
    def SMALLINT(nullable: bool = True) -> DataType:
        """A column of 16-bit integers."""
        return DataType("SMALLINT", Types.SHORT(), nullable)

    @staticmethod
    def INT(nullable: bool = True) -> DataType:
        """A column of 32-bit integers."""
        return DataType("INT", Types.INT(), nullable)

    @staticmethod
    def BIGINT(nullable: bool = True) -> DataType:
        """A column of 64-bit integers."""
        return DataType("BIGINT", Types.LONG(), nullable)

    @staticmethod
    def FLOAT(nullable: bool = True) -> DataType:
        """A column of 32-bit floats."""
        return DataType("FLOAT", Types.FLOAT(), nullable)

    @staticmethod
    def DOUBLE(nullable: bool = True) -> DataType:
        """A column of 64-bit floats."""
        return DataType("DOUBLE", Types.DOUBLE(), nullable)

    @staticmethod
    def DECIMAL(precision: int, scale: int, nullable: bool = True) -> DataType:
        """A column of decimals with this many digits, ``scale`` of them after the point."""
        if not 1 <= precision <= MOST_DIGITS or not 0 <= scale <= precision:
            wanted = f"a precision of 1 to {MOST_DIGITS} digits and a scale of 0 to that precision"
            raise wrong("DataTypes.DECIMAL", wanted, (precision, scale), "DataTypes.DECIMAL(10, 2)")
        return DataType(f"DECIMAL({precision}, {scale})", DecimalTypeInfo(precision, scale), nullable)

    @staticmethod
    def BINARY(length: int, nullable: bool = True) -> DataType:
        """A column of bytes. The length is not checked."""
        return DataType(f"BINARY({length})", Types.PRIMITIVE_ARRAY(Types.BYTE()), nullable)

    @staticmethod
    def VARBINARY(length: int, nullable: bool = True) -> DataType:
        """A column of bytes. The length is not checked."""
        return DataType(f"VARBINARY({length})", Types.PRIMITIVE_ARRAY(Types.BYTE()), nullable)

    @staticmethod
    def BYTES(nullable: bool = True) -> DataType:
        """A column of bytes."""
        return DataType("BYTES", Types.PRIMITIVE_ARRAY(Types.BYTE()), nullable)

    @staticmethod
    def DATE(nullable: bool = True) -> DataType:
        """A column of dates."""
        return DataType("DATE", Types.SQL_DATE(), nullable)

    @staticmethod
    def TIME(precision: int = 0, nullable: bool = True) -> DataType:
        """A column of times of day."""
        return DataType(f"TIME({precision})", Types.SQL_TIME(), nullable)

    @staticmethod
    def TIMESTAMP(precision: int = 6, nullable: bool = True) -> DataType:
        """A column of dates with a time, without a zone."""
        info = LocalTimeTypeInfo(LocalTimeTypeInfo.TimeType.LOCAL_DATE_TIME)
        return DataType(f"TIMESTAMP({precision})", info, nullable)

    @staticmethod
    def ARRAY(element_type: DataType, nullable: bool = True) -> DataType:
        """A column of lists of this type."""
        return DataType(f"ARRAY<{element_type}>", Types.LIST(info_of("DataTypes.ARRAY", element_type)), nullable)

    @staticmethod
    def MAP(key_type: DataType, value_type: DataType, nullable: bool = True) -> DataType:
        """A column of dicts."""
        key, value = info_of("DataTypes.MAP", key_type), info_of("DataTypes.MAP", value_type)
        return DataType(f"MAP<{key_type}, {value_type}>", Types.MAP(key, value), nullable)

    @staticmethod
    def FIELD(name: str, data_type: DataType, description: str | None = None) -> RowField:
        """A field of a row."""
        return RowField(name, data_type, description)

    @staticmethod
    def ROW(row_fields: list[RowField] | None = None, nullable: bool = True) -> RowType:
        """A row with these fields."""
        return RowType(row_fields, nullable)


def info_of(method: str, declared: Any) -> TypeInformation:
    """Return the type of the values, of a table type or of a type of ``Types``."""
    if isinstance(declared, DataType):
        return declared.info
    if isinstance(declared, TypeInformation):
        return declared
    raise wrong(method, "a type", declared, "use a type of DataTypes, for example DataTypes.STRING()")


def row_of(method: str, declared: Any) -> RowTypeInfo:
    """Return the columns of a file."""
    info = info_of(method, declared)
    if not isinstance(info, RowTypeInfo) or not info.get_field_types():
        cure = 'DataTypes.ROW([DataTypes.FIELD("id", DataTypes.INT())]), or Types.ROW_NAMED(["id"], [Types.INT()])'
        raise wrong(method, "a row type with at least one field", declared, cure)
    return info

"""The types of columns, by PyFlink's module path."""

from tidegate.common.data_types import DataType, DataTypes, RowField, RowType
from tidegate.common.types import Row, RowKind

__all__ = ["DataType", "DataTypes", "Row", "RowField", "RowKind", "RowType"]

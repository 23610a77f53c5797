"""The names of PyFlink's ``table`` package that DataStream programs use: the types of columns. There is no Table API."""

from tidegate.table.types import DataTypes, Row, RowKind

__all__ = ["DataTypes", "Row", "RowKind"]

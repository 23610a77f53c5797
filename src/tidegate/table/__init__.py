"""What programs take from PyFlink's ``table`` package for the DataStream API: the types of columns. The Table API is not here."""

from tidegate.table.types import DataTypes, Row, RowKind

__all__ = ["DataTypes", "Row", "RowKind"]

"""What programs take from PyFlink's ``table`` package for the DataStream API: the types of columns of files."""

from tidegate.common.data_types import DataTypes

__all__ = ["DataTypes"]

"""ConfigOption and its builder: a user's own typed key, as in PyFlink."""

from __future__ import annotations

from types import GenericAlias
from typing import Any, TypeVar

from tidegate.common.option_types import BOOL, FLOAT, INT, TEXT, OptionType
from tidegate.common.options import Option

__all__ = ["ConfigOption", "ConfigOptions"]

T = TypeVar("T")


class ConfigOption:
    """A key with a type and maybe a default value; ``Configuration.read`` takes its ``option``."""

    __class_getitem__: Any = classmethod(GenericAlias)

    def __init__(self, option: Option) -> None:
        self.option = option

    def key(self) -> str:
        """Return the key."""
        return self.option.key

    def default_value(self) -> Any:
        """Return the default value; None if there is none."""
        return self.option.default

    def __repr__(self) -> str:
        return f"ConfigOption({self.option.key!r}, {self.option.type.name}, default {self.option.default!r})"


class ConfigOptions:
    """``ConfigOptions.key("my.key").int_type().default_value(3)``."""

    @staticmethod
    def key(key: str) -> ConfigOptions.OptionBuilder:
        """Return the builder of an option; set its type next."""
        return ConfigOptions.OptionBuilder(key)

    class OptionBuilder:
        """Sets the type."""

        def __init__(self, key: str) -> None:
            self._key = key

        def boolean_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            """Its values are bools."""
            return ConfigOptions.TypedConfigOptionBuilder(self._key, BOOL)

        def int_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            """Its values are ints."""
            return ConfigOptions.TypedConfigOptionBuilder(self._key, INT)

        def long_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            """Its values are ints."""
            return ConfigOptions.TypedConfigOptionBuilder(self._key, INT)

        def float_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            """Its values are floats."""
            return ConfigOptions.TypedConfigOptionBuilder(self._key, FLOAT)

        def double_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            """Its values are floats."""
            return ConfigOptions.TypedConfigOptionBuilder(self._key, FLOAT)

        def string_type(self) -> ConfigOptions.TypedConfigOptionBuilder:
            """Its values are texts."""
            return ConfigOptions.TypedConfigOptionBuilder(self._key, TEXT)

    class TypedConfigOptionBuilder:
        """Sets the default value."""

        def __init__(self, key: str, type_: OptionType) -> None:
            self._key, self._type = key, type_

        def default_value(self, value: Any) -> ConfigOption:
            """Return the option with this default value."""
            return ConfigOption(Option(self._key, self._type, self._type.parse(value), "A user's own option."))

        def no_default_value(self) -> ConfigOption:
            """Return the option without a default value."""
            return ConfigOption(Option(self._key, self._type, None, "A user's own option."))

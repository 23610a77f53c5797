"""Generic classes for type checkers, with defaults: ``DataStream`` alone is ``DataStream[Any]``.

At run time brackets cost nothing and take any number of parameters, as PyFlink programs write them.
"""

from __future__ import annotations

import typing
from types import GenericAlias
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing import Generic as Generic

    from typing_extensions import TypeVar as TypeVar  # every checker knows it; it need not be installed
else:

    class Generic:
        """The base of generic classes."""

        __slots__ = ()
        __class_getitem__ = classmethod(GenericAlias)

    def TypeVar(name: str, *constraints: Any, default: Any = Any, **keywords: Any) -> Any:
        """Return a type variable. Before Python 3.13 type variables have no defaults."""
        return typing.TypeVar(name, *constraints, **keywords)


In = TypeVar("In", contravariant=True, default=Any)
In1 = TypeVar("In1", contravariant=True, default=Any)
In2 = TypeVar("In2", contravariant=True, default=Any)
Out = TypeVar("Out", covariant=True, default=Any)
Key = TypeVar("Key", default=Any)
Window = TypeVar("Window", default=Any)
Accumulator = TypeVar("Accumulator", default=Any)
"""The parameters of functions: records in and out, key, window, accumulator."""

"""Import libraries of an extra when a format or a connector is first used."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tidegate.base.errors import ConfigurationError


def library(name: str, wanted_by: str, extra: str = "formats") -> Any:
    """Import the module ``name`` of a library. Raises ConfigurationError with the name of the extra if it is missing."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigurationError(
            f"{wanted_by} needs the package {package}",
            found=f"it cannot be imported: {error}",
            cure=f"pip install 'tidegate[{extra}]', in the environment of the workers too",
        ) from error

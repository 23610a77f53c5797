"""The libraries of the formats, imported when a format is first used: they are an extra of the package."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from tidegate.common.errors import ConfigurationError


def library(name: str, wanted_by: str) -> Any:
    """The module ``name`` of pyarrow or fastavro."""
    try:
        return import_module(name)
    except ImportError as error:
        package = name.partition(".")[0]
        raise ConfigurationError(
            f"{wanted_by} needs the package {package}",
            found=f"it cannot be imported: {error}",
            cure="pip install 'tidegate[formats]', in the environment of the workers too",
        ) from error

"""The one PyFlink Java tool that programs use."""

from __future__ import annotations

from typing import Any

from tidegate.common.configuration import Configuration

__all__ = ["get_j_env_configuration"]


def get_j_env_configuration(j_env: Any) -> Configuration:
    """Return the configuration of the environment itself: values that a program sets in ``Configuration(j_configuration=...)``
    take effect."""
    configuration: Configuration = j_env.getConfiguration()
    return configuration

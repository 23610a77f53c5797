"""The one of PyFlink's Java tools that programs use."""

from __future__ import annotations

from typing import Any

from tidegate.common.configuration import Configuration

__all__ = ["get_j_env_configuration"]


def get_j_env_configuration(j_env: Any) -> Configuration:
    """The configuration of ``env._j_stream_execution_environment``, which is that of the environment itself: what is set in
    ``Configuration(j_configuration=...)`` counts for the program."""
    configuration: Configuration = j_env.getConfiguration()
    return configuration

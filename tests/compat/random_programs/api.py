"""The names the programs are written against, from the package DIFFERENTIAL_API names (Tidegate by default).

A name that the package does not have is None: stages that need it are then left out.
"""

from __future__ import annotations

import os
from importlib import import_module
from importlib.util import find_spec
from typing import Any

ROOT = os.environ.get("DIFFERENTIAL_API", "tidegate")


def named(module: str, name: str) -> Any:
    whole = f"{ROOT}.{module}"
    return getattr(import_module(whole), name, None) if find_spec(whole) is not None else None


def base(module: str, name: str) -> Any:
    """To be subclassed: a stand-in if the package does not have it."""
    return named(module, name) or object


Duration, Time, Types = (named("common", name) for name in ("Duration", "Time", "Types"))
Configuration, WatermarkStrategy = (named("common", name) for name in ("Configuration", "WatermarkStrategy"))
TimestampAssigner = named("common.watermark_strategy", "TimestampAssigner")
StreamExecutionEnvironment = named("datastream", "StreamExecutionEnvironment")
OutputTag = named("datastream", "OutputTag")

"""A board for Grafana and alert rules for Prometheus. ``python -m tidegate.control.monitoring`` prints where they are."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

BOARD, RULES = "grafana.json", "alerts.yaml"


def paths() -> list[Path]:
    return [Path(str(files(__name__).joinpath(name))) for name in (BOARD, RULES)]

"""Where real PyFlink is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]


def pyflink_python() -> Path:
    """Of the environment scripts/pyflink_venv.sh makes. Its folder has to come first in PATH: PyFlink starts ``python``."""
    python = Path(os.environ.get("TIDEGATE_PYFLINK_VENV") or REPOSITORY / ".venv-pyflink") / "bin" / "python"
    if not python.exists():
        pytest.skip(f"no PyFlink at {python}: run `make test-pyflink`")
    return python

"""Prints the paths of the board and of the alert rules, one a line."""

from __future__ import annotations

import sys

from tidegate.control.monitoring import paths

sys.stdout.write("".join(f"{path}\n" for path in paths()))

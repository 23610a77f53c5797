#!/usr/bin/env bash
# Types of the source, then of the tests (tests/mypy.ini), which import modules of the examples.
set -euo pipefail
cd "$(dirname "$0")/.."
mypy=${MYPY:-.venv/bin/mypy}
"$mypy"
MYPYPATH="src:.:examples/demo:examples/kafka" "$mypy" --config-file tests/mypy.ini tests

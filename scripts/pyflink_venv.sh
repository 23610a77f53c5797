#!/usr/bin/env bash
# An environment of its own for real PyFlink (differential tests, benchmarks). TIDEGATE_PYFLINK_VENV points at an existing one.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${TIDEGATE_PYFLINK_VENV:-.venv-pyflink}
if [ ! -x "$venv/bin/python" ]; then
    "${PYTHON:-python3}" -m venv "$venv"
fi
"$venv/bin/python" -c 'import pyflink' 2>/dev/null || "$venv/bin/python" -m pip install --quiet 'apache-flink==2.3.*'

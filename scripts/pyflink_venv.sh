#!/usr/bin/env bash
# An environment of its own for real PyFlink (make test-pyflink, make record-pyflink). Safe to run again: what is there is kept.
#   TIDEGATE_PYFLINK_VENV  an environment that has PyFlink already, instead of making <repo>/.venv-pyflink
#   PYTHON                 the interpreter for a new one (PyFlink 2.3 needs 3.9 to 3.12)
set -euo pipefail
cd "$(dirname "$0")/.."
venv=${TIDEGATE_PYFLINK_VENV:-.venv-pyflink}
if [ ! -x "$venv/bin/python" ]; then
    if [ -n "${TIDEGATE_PYFLINK_VENV:-}" ]; then
        echo "TIDEGATE_PYFLINK_VENV names an environment with PyFlink. Found: no $venv/bin/python. Unset it to have one made." >&2
        exit 1
    fi
    python=${PYTHON:-python3}
    if ! "$python" -c 'import sys; sys.exit(not (3, 9) <= sys.version_info < (3, 13))'; then
        echo "PyFlink 2.3 needs Python 3.9 to 3.12. Found: $("$python" --version). Name another: make PYTHON=python3.11 test-pyflink" >&2
        exit 1
    fi
    echo "Making $venv for PyFlink (some minutes and 850 MB, once) ..."
    "$python" -m venv "$venv"
fi
"$venv/bin/python" -c 'import pyflink' 2>/dev/null || "$venv/bin/python" -m pip install --quiet 'apache-flink==2.3.*'
"$venv/bin/python" -c 'from pyflink.version import __version__ as v; import sys; sys.exit(None if v.startswith("2.3.") else f"The tests compare with PyFlink 2.3. Found: {v}.")'

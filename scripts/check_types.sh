#!/usr/bin/env bash
# Types of the source, then of the tests (tests/mypy.ini). Test modules import their neighbours by bare names, as pytest lets them.
set -euo pipefail
cd "$(dirname "$0")/.."
mypy=${MYPY:-.venv/bin/mypy}
"$mypy"
folders=$(find tests examples/demo examples/kafka -name '*.py' -not -path '*/differential/*' -not -path '*/random_programs/*' -exec dirname {} + | sort -u | tr '\n' ':')
export MYPYPATH="src:$folders"
"$mypy" --config-file tests/mypy.ini tests
for fixtures in $(find tests -name conftest.py | sort); do
    "$mypy" --config-file tests/mypy.ini --no-error-summary "$fixtures"
done

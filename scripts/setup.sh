#!/usr/bin/env bash
# Creates the virtual environment with Tidegate and its development tools. Names what is missing and how to install it.
set -euo pipefail
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-python3}
VENV=${VENV:-.venv}

if ! command -v "$PYTHON" >/dev/null || ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))'; then
    found=$("$PYTHON" --version 2>/dev/null || echo none)
    echo "Tidegate needs Python 3.11 or later. Found: $found." >&2
    echo "Install it:  sudo apt-get install python3.11 python3.11-venv   (then: make PYTHON=python3.11 setup)" >&2
    exit 1
fi

major=0
if command -v java >/dev/null; then
    major=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p' | head -n 1)
fi
if [ "${major:-0}" -lt 17 ]; then
    echo "Tidegate needs Java 17 or later (a full JDK: Spark's launcher uses jdk.incubator.vector). Found: ${major:-none}." >&2
    echo "Install it:  sudo apt-get install openjdk-17-jdk-headless" >&2
    exit 1
fi

if [ ! -x "$VENV/bin/python" ]; then
    "$PYTHON" -m venv "$VENV" || {
        echo "Could not create $VENV. Install the venv module:  sudo apt-get install python3-venv" >&2
        exit 1
    }
fi
echo "Installing Tidegate into $VENV (first time: some minutes, PySpark is large) ..."
# uv installs everything from uv.lock, and is itself installed from there: pip checks its hashes.
uv=$(mktemp)
trap 'rm -f "$uv"' EXIT
"$VENV/bin/python" - >"$uv" <<'EOF'
import tomllib

with open("uv.lock", "rb") as lock:
    uv = next(package for package in tomllib.load(lock)["package"] if package["name"] == "uv")
print(f"uv=={uv['version']}", *(f"--hash={file['hash']}" for file in uv["wheels"]))
EOF
"$VENV/bin/python" -m pip install --quiet --only-binary uv --require-hashes --requirement "$uv"
# As pip does, uv trusts the certificates of the system: a company's proxy may have its own.
UV_SYSTEM_CERTS=true UV_PROJECT_ENVIRONMENT="$VENV" "$VENV/bin/uv" sync --quiet --frozen --inexact --extra dev

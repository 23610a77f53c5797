#!/usr/bin/env bash
# Sets up what bench/run.py compares Tidegate with. Safe to run again: what is there is kept.
#   TIDEGATE_PYFLINK_VENV  use this PyFlink environment instead of making <repo>/.venv-pyflink
#   PYTHON                 the interpreter for it (PyFlink 2.3 needs 3.9-3.12); default: <repo>/.venv/bin/python
set -euo pipefail

repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="$repo/.venv"
pyflink="${TIDEGATE_PYFLINK_VENV:-$repo/.venv-pyflink}"

for tool in java javac; do
    if ! command -v "$tool" >/dev/null; then
        echo "bench: $tool not found; install a JDK (17 or 21): sudo apt-get install -y openjdk-17-jdk-headless" >&2
        exit 1
    fi
done
if [ ! -x "$venv/bin/python" ]; then
    echo "bench: $venv not found; run: make setup" >&2
    exit 1
fi

# transformWithState: pandas 3 is not yet supported by PySpark 4.3, and its messages are generated for protobuf 6.
"$venv/bin/python" -m pip install --quiet psutil rich \
    "pandas>=2.2,<3" "pyarrow>=18" "grpcio>=1.76" "grpcio-status>=1.76" "protobuf>=6.33.5,<7"

if [ ! -x "$pyflink/bin/python" ]; then
    if [ -n "${TIDEGATE_PYFLINK_VENV:-}" ]; then
        echo "bench: TIDEGATE_PYFLINK_VENV=$pyflink has no bin/python; unset it to have an environment made" >&2
        exit 1
    fi
    echo "bench: making $pyflink (850 MB, once)"
    "${PYTHON:-$venv/bin/python}" -m venv "$pyflink"
fi
"$pyflink/bin/python" -c 'import pyflink' 2>/dev/null || "$pyflink/bin/python" -m pip install --quiet "apache-flink==2.3.*"

jars="$("$pyflink/bin/python" -c 'import os, pyflink; print(os.path.join(os.path.dirname(pyflink.__file__), "lib"))')"
mkdir -p "$repo/bench/build"
# Flink's Kafka connector, with its client in it: of 2.2, the newest there is.
kafka="$repo/bench/build/flink-sql-connector-kafka-5.0.0-2.2.jar"
if [ ! -f "$kafka" ]; then
    curl -sfL -o "$kafka.part" \
        "https://repo1.maven.org/maven2/org/apache/flink/flink-sql-connector-kafka/5.0.0-2.2/$(basename "$kafka")"
    mv "$kafka.part" "$kafka"
fi
javac -d "$repo/bench/build" -cp "$jars/*:$kafka" "$repo"/bench/peers/*.java
mkdir -p "$repo/bench/build/nexmark"
javac -d "$repo/bench/build/nexmark" -cp "$jars/*:$kafka" "$repo"/bench/nexmark/java/*.java
echo "bench: peers ready (PyFlink in $pyflink, Java classes in bench/build)"

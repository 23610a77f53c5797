#!/usr/bin/env bash
# Sets up what bench/run.py compares Tidegate with. Safe to run again: what is there is kept.
#   --java-only            only Flink's jars and the programs in Java: without PyFlink, and without PySpark's additions
#   TIDEGATE_PYFLINK_VENV  use this PyFlink environment instead of making <repo>/.venv-pyflink
#   VENV                   the environment of Tidegate; default: <repo>/.venv
#   PYTHON                 the interpreter for it (PyFlink 2.3 needs 3.9-3.12); default: <repo>/.venv/bin/python
set -euo pipefail

java_only=""
if [ "${1:-}" = "--java-only" ]; then
    java_only=yes
elif [ $# -gt 0 ]; then
    echo "bench: unknown argument $1; the only one is --java-only" >&2
    exit 1
fi
repo="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
venv="${VENV:-$repo/.venv}"
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

"$venv/bin/python" -c 'import psutil, rich' 2>/dev/null || "$venv/bin/python" -m pip install --quiet psutil rich
if [ -z "$java_only" ]; then
    # transformWithState: pandas 3 is not yet supported by PySpark 4.3, and its messages are generated for protobuf 6.
    "$venv/bin/python" -m pip install --quiet \
        "pandas>=2.2,<3" "pyarrow>=18" "grpcio>=1.76" "grpcio-status>=1.76" "protobuf>=6.33.5,<7"
fi

if [ ! -x "$pyflink/bin/python" ]; then
    if [ -n "${TIDEGATE_PYFLINK_VENV:-}" ]; then
        echo "bench: TIDEGATE_PYFLINK_VENV=$pyflink has no bin/python; unset it to have an environment made" >&2
        exit 1
    fi
    echo "bench: making $pyflink (850 MB with PyFlink, once)"
    "${PYTHON:-$venv/bin/python}" -m venv "$pyflink"
fi
site="$("$pyflink/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
jars="$site/pyflink/lib"
if [ -n "$java_only" ]; then
    # the package with the jars alone
    [ -d "$jars" ] || "$pyflink/bin/python" -m pip install --quiet --no-deps "apache-flink-libraries==2.3.*"
else
    "$pyflink/bin/python" -c 'import pyflink.datastream' 2>/dev/null ||
        "$pyflink/bin/python" -m pip install --quiet "apache-flink==2.3.*"
fi
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
echo "bench: peers ready (Flink in $pyflink, Java classes in bench/build)"

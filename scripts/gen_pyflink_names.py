"""Writes src/tidegate/pyflink_names.json: PyFlink's names, as recorded in tests/compat, under our module paths."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
TARGET = ROOT / "src" / "tidegate" / "pyflink_names.json"
NEVER = {
    "there are no Java objects in a Python program": [
        "get_java_*",
        "SourceFunction",
        "add_source",
        "create_input",
        "add_jars",
        "add_classpaths",
        "CustomCheckpointStorage",
        "CustomStateBackend",
        "ExternalTypeInfo",
        "TypeSerializer",
    ],
    "Flink itself has replaced it by FileSink": ["StreamingFileSink"],
    "Spark decides where splits are read": ["set_split_assigner", "FileSplitAssignerProvider"],
}


def content() -> str:
    api = json.loads((ROOT / "tests" / "compat" / "pyflink_api.json").read_text())
    names = {
        module.replace("pyflink", "tidegate", 1): {name: sorted(methods) for name, methods in sorted(classes.items())}
        for module, classes in sorted(api.items())
    }
    for module in list(names):  # "formats" of "formats.csv"
        for above in range(2, module.count(".") + 1):
            names.setdefault(".".join(module.split(".")[:above]), {})
    every = {name for classes in names.values() for each, methods in classes.items() for name in (each, *methods)}
    never = {
        reason: sorted(name for name in every if any(fnmatchcase(name, pattern) for pattern in patterns))
        for reason, patterns in NEVER.items()
    }
    return json.dumps({"never": never, "names": names}, indent=0) + "\n"


if __name__ == "__main__":
    TARGET.write_text(content())

"""Writes src/tidegate/pyflink_names.json: PyFlink's names, as recorded in tests/compat, under our module paths."""

from __future__ import annotations

import json
from fnmatch import fnmatchcase
from pathlib import Path

ROOT = Path(__file__).parents[1]
COMPAT = ROOT / "tests" / "compat"
TARGET = ROOT / "src" / "tidegate" / "pyflink_names.json"
NEVER = {
    "there are no Java objects in a Python program": [
        "get_java_*",
        "SourceFunction",
        "add_source",
        "create_input",
        "CustomCheckpointStorage",
        "CustomStateBackend",
        "ExternalTypeInfo",
        "TypeSerializer",
    ],
    "Flink itself has replaced it by FileSink": ["StreamingFileSink"],
    "Spark decides where splits are read": ["set_split_assigner", "FileSplitAssignerProvider"],
}


def content() -> str:
    api, modules = (json.loads((COMPAT / f"pyflink_{name}.json").read_text()) for name in ("api", "modules"))
    names = {
        ours(module): {name: sorted(methods) for name, methods in sorted(classes.items())}
        for module, classes in sorted(api.items())
    }
    homes = {
        ours(module): {name: ours(home) for name, home in found.items() if home != module and home in modules}
        for module, found in modules.items()
    }
    for module, found in modules.items():
        classes = names.setdefault(ours(module), {})
        classes |= {name: [] for name in found if name not in {*classes, *classes.get("<functions>", ())}}
    for module in list(names):  # "formats" of "formats.csv"
        for above in range(2, module.count(".") + 1):
            names.setdefault(".".join(module.split(".")[:above]), {})
    every = {name for classes in names.values() for each, methods in classes.items() for name in (each, *methods)}
    never = {
        reason: sorted(name for name in every if any(fnmatchcase(name, pattern) for pattern in patterns))
        for reason, patterns in NEVER.items()
    }
    return (
        json.dumps(
            {"never": never, "homes": {m: found for m, found in homes.items() if found}, "names": names}, indent=0
        )
        + "\n"
    )


def ours(name: str) -> str:
    return name.replace("pyflink", "tidegate", 1)


if __name__ == "__main__":
    TARGET.write_text(content())

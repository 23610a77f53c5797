"""What ``make site`` adds to the pages of docs/: the API reference, pages from the root of the repository, the version.

MkDocs calls the functions ``on_...``. Nothing is written into docs/: the added pages exist only in the site.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src"
API = {
    "Programs": ["tidegate.datastream", "tidegate.datastream.functions", "tidegate.datastream.state", "tidegate.datastream.window"],
    "Types and configuration": [
        "tidegate.common",
        "tidegate.common.typeinfo",
        "tidegate.common.types",
        "tidegate.common.time",
        "tidegate.common.watermark_strategy",
        "tidegate.common.restart_strategy",
        "tidegate.table",
        "tidegate.metrics",
    ],
    "Connectors": ["tidegate.datastream.connectors", "tidegate.datastream.connectors.*"],
    "Formats": ["tidegate.datastream.formats.*"],
    "Snapshots": ["tidegate.state_reader", "tidegate.state_writer"],
    "Testing": ["tidegate.testing", "tidegate.testing.*"],
    "PyFlink's names": ["tidegate.pyflink_compat"],
}
"""Group of the sidebar -> modules. ``.*`` means all modules of a package. The paths are PyFlink's where PyFlink has them."""
HIDDEN = {"tidegate.testing.kill_hook", "tidegate.testing.sink_run"}
"""Modules that other processes load by name. Nobody calls them."""
ROOT_PAGES = {
    "README.md": "index.md",
    "ARCHITECTURE.md": "architecture.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "bench/README.md": "bench.md",
}
"""File of the repository -> page of the site."""
AWAITED = ("testing.md", "web.md", "rest-api.md")
"""Pages whose entry in the sidebar waits for them."""
_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]+)\)")
_FENCE = re.compile(r"^(```|~~~).*?^\1[ \t]*$", re.MULTILINE | re.DOTALL)


# -- the API reference


def modules(names: list[str]) -> list[str]:
    """The modules that these names mean, in their order."""
    found: list[str] = []
    for name in names:
        package = SOURCE.joinpath(*name.removesuffix(".*").split("."))
        if not name.endswith(".*"):
            found.append(name)
            continue
        here = sorted(path.stem for path in package.glob("*.py") if not path.stem.startswith("_"))
        found += [f"{name[:-2]}.{stem}" for stem in here]
    return [name for name in found if name not in HIDDEN and public_names(name)]


def public_names(module: str) -> list[str]:
    """What a module exports: ``__all__`` and names that it resolves later, or its public definitions. Nothing is imported."""
    path = SOURCE.joinpath(*module.split("."))
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text())
    listed: list[str] = []
    defined: list[str] = []
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and [ast.unparse(target) for target in statement.targets] == ["__all__"]:
            listed += [part for part in ast.literal_eval(statement.value) if isinstance(part, str)]
        if isinstance(statement, ast.ClassDef | ast.FunctionDef) and not statement.name.startswith("_"):
            defined.append(statement.name)
    return listed or defined


def api_index() -> str:
    head = (
        "# API reference\n\nEvery public class and function with its contract, made from the docstrings. Paths are PyFlink's, with "
        "`tidegate` for `pyflink`. [Releases](../releases.md) says which names are promised; [features](../features.md) counts them.\n"
    )
    lines = [head]
    for group, names in API.items():
        lines.append(f"\n## {group}\n")
        lines += [f"- [`{name}`]({name}.md): {_first_line(name)}" for name in modules(names)]
    return "\n".join(lines) + "\n"


def _first_line(module: str) -> str:
    path = SOURCE.joinpath(*module.split("."))
    text = ast.get_docstring(ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text()))
    return (text or "").partition("\n")[0].replace("``", "`")


def api_page(module: str) -> str:
    names = public_names(module)
    listed = "".join(f"\n        - {name}" for name in names)
    return f"# `{module}`\n\n::: {module}\n    options:\n      members:{listed}\n"


# -- what MkDocs calls


def on_config(config: Any) -> Any:
    version = re.search(r'__version__ = "(.+)"', (SOURCE / "tidegate" / "__init__.py").read_text())
    assert version is not None
    config.copyright = f"Tidegate {version[1]}: this site describes this version. License: Apache 2.0."
    config.nav = [*_present(config.nav), {"API": [{"Overview": "api/index.md"}, *_api_nav()]}]
    return config


def _api_nav() -> list[dict[str, Any]]:
    return [{group: [{name: f"api/{name}.md"} for name in modules(names)]} for group, names in API.items()]


def _present(nav: list[Any]) -> list[Any]:
    """The sidebar without the pages of AWAITED that are not there yet."""
    missing = {page for page in AWAITED if not (ROOT / "docs" / page).exists()}
    kept = [
        {name: _present(entry) if isinstance(entry, list) else entry} for item in nav for name, entry in item.items()
    ]
    return [item for item in kept if not missing.issuperset(map(str, item.values()))]


def on_files(files: Any, config: Any) -> Any:
    from mkdocs.structure.files import File

    for source, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / source).read_text()))
    files.append(File.generated(config, "api/index.md", content=api_index()))
    for names in API.values():
        for module in modules(names):
            files.append(File.generated(config, f"api/{module}.md", content=api_page(module)))
    return files


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    source = {target: origin for origin, target in ROOT_PAGES.items()}.get(page.file.src_uri)
    here = PurePosixPath(source).parent if source is not None else PurePosixPath("docs", page.file.src_uri).parent
    depth = len(PurePosixPath(page.file.src_uri).parts) - 1

    def linked(match: re.Match[str]) -> str:
        mark, text, target = match.groups()
        if "://" in target or target.startswith(("#", "mailto:")):
            return match[0]
        path, anchor, fragment = target.partition("#")
        place = _normal(here / path)
        if place in ROOT_PAGES:
            return f"{mark}[{text}]({'../' * depth}{ROOT_PAGES[place]}{anchor}{fragment})"
        if place.startswith("docs/"):
            return f"{mark}[{text}]({'../' * depth}{place.removeprefix('docs/')}{anchor}{fragment})"
        # A file of the repository that is no page: the reader of the site learns its path.
        return text if place in text else f"{text} (`{place}`)"

    fences = [match.span() for match in _FENCE.finditer(markdown)]

    def outside(match: re.Match[str]) -> str:
        return match[0] if any(a <= match.start() < b for a, b in fences) else linked(match)

    return _LINK.sub(outside, markdown)


def _normal(path: PurePosixPath) -> str:
    parts: list[str] = []
    for part in path.parts:
        if part == "..":
            parts.pop()
        elif part != ".":
            parts.append(part)
    return "/".join(parts)

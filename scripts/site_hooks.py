"""What ``make site`` adds to the pages of docs/: the API reference, pages from the root of the repository, the version.

MkDocs calls the functions ``on_...``. Nothing is written into docs/: the added pages exist only in the site.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path, PurePosixPath
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from scripts import api_reference, build_site  # noqa: E402 - MkDocs loads this file by its path

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


# -- what MkDocs calls


def on_config(config: Any) -> Any:
    config.copyright = f"Tidegate {build_site.this_version()}: this site describes this version. License: Apache 2.0."
    config.nav = [*_present(config.nav), {"API": [{"Overview": "api/index.md"}, *_api_nav()]}]
    return config


def _api_nav() -> list[dict[str, Any]]:
    groups = api_reference.groups()
    return [{group: [{_short(name): f"api/{name}.md"} for name in names]} for group, names in groups.items()]


def _short(module: str) -> str:
    """The sidebar is narrow."""
    return module.removeprefix("tidegate.").removeprefix("datastream.")


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
    files.append(File.generated(config, "api/index.md", content=api_reference.index()))
    for modules in api_reference.groups().values():
        for module in modules:
            files.append(File.generated(config, f"api/{module}.md", content=api_reference.page(module)))
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

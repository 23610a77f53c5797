"""The API reference of the site: every public thing of every module has a docstring, and stands on one page."""

from __future__ import annotations

import re
from pathlib import Path

from scripts import api_reference


def test_every_public_thing_has_a_docstring() -> None:
    # A test of a contract needs no docstring: its name says what it tests
    bare = [name for name in api_reference.undocumented() if ".test_" not in name]
    assert bare == [], "state the contract: when it is called, how often, what is not guaranteed"


class Base:
    """Of others."""

    def inherited(self) -> None:
        """Here."""


class Bare(Base):
    def inherited(self) -> None: ...

    def own(self) -> None: ...

    class Inner:
        pass

    def _hidden(self) -> None: ...


def test_a_missing_docstring_is_seen_where_it_is_and_an_inherited_one_counts() -> None:
    assert list(api_reference.bare_names("Bare", Bare)) == ["Bare", "Bare.own", "Bare.Inner"]


def test_connectors_and_formats_are_in_the_reference() -> None:
    modules = {module for modules in api_reference.groups().values() for module in modules}
    packages = Path(api_reference.__file__).parents[1] / "src" / "tidegate" / "datastream"
    for package in ("connectors", "formats"):
        files = {path.stem for path in (packages / package).glob("[a-z]*.py")}
        assert files and {f"tidegate.datastream.{package}.{file}" for file in files} <= modules
    shown = {name for _, name in api_reference.home_of().values()}
    assert {
        "KafkaSource",
        "PostgreSqlSink",
        "DeltaSink",
        "IcebergSink",
        "RedisSink",
        "JdbcSink",
        "CsvReaderFormat",
    } <= shown


def test_a_thing_stands_on_one_page_and_the_others_link_to_it() -> None:
    page = api_reference.page("tidegate.datastream.connectors")
    assert "\n::: tidegate.datastream.connectors.DeltaSink\n" in page
    assert (
        "[`KafkaSource`](tidegate.datastream.connectors.kafka.md#tidegate.datastream.connectors.kafka.KafkaSource)"
        in page
    )
    directives = [
        name
        for modules in api_reference.groups().values()
        for module in modules
        for name in re.findall(r"^::: (\S+)", api_reference.page(module), re.MULTILINE)
    ]
    assert len(directives) == len(set(directives)) == len(api_reference.home_of())


def test_private_names_are_on_no_page() -> None:
    for modules in api_reference.groups().values():
        for module in modules:
            assert re.findall(r"^(?:::: .*\._|        - _)\S*", api_reference.page(module), re.MULTILINE) == []

"""The configuration before the program's own settings: a YAML file, then ``-D`` of the command line."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from tidegate.base.errors import ConfigurationError
from tidegate.common.configuration import Configuration
from tidegate.common.option_types import MAP
from tidegate.common.options import SPELLINGS

log = logging.getLogger(__name__)

FILE_NAME = "config.yaml"
_dynamic: dict[str, Any] = {}
announced: set[Path] = set()


def set_dynamic_properties(properties: Mapping[str, Any]) -> None:
    """Set the values of ``-D`` (and ``-p``, ``-s``, ``--master``) for environments that this process makes later."""
    _dynamic.clear()
    _dynamic.update(properties)


def load() -> Configuration:
    """Return the configuration: defaults < file < ``-D``. As in Flink, the program's own settings override it."""
    configuration = Configuration()
    path = configuration_file()
    tell_file(log.warning if path == Path("conf", FILE_NAME) else log.info)
    if path is not None:
        _overlay(configuration, read_yaml(path), f"file {path}")
    _overlay(configuration, _dynamic, "-D of the command line")
    return configuration


def tell_file(say: Callable[[str], object]) -> None:
    """Log which file is used, once for each file: the user did not name the file of the current directory."""
    path = configuration_file()
    if path is not None and path.absolute() not in announced:
        announced.add(path.absolute())
        say(f"configuration: {path.absolute()}")


def _overlay(configuration: Configuration, values: Mapping[str, Any], where: str) -> None:
    try:
        configuration.overlay(Configuration.from_dict(dict(values)))
    except ConfigurationError as error:
        raise ConfigurationError(error.rule, where=where, found=error.found, cure=error.cure) from None


def configuration_file() -> Path | None:
    """Return ``config.yaml`` of ``$TIDEGATE_CONF_DIR``, else of ``$FLINK_CONF_DIR``, else of ``./conf``."""
    named = os.environ.get("TIDEGATE_CONF_DIR")
    if named:
        path = Path(named) / FILE_NAME
        if not path.is_file():
            raise ConfigurationError(
                f"TIDEGATE_CONF_DIR names a directory without {FILE_NAME}",
                found=f"no {path}",
                cure="correct or unset the variable",
            )
        return path
    candidates = [Path(os.environ["FLINK_CONF_DIR"])] if os.environ.get("FLINK_CONF_DIR") else []
    candidates.append(Path("conf"))
    return next((folder / FILE_NAME for folder in candidates if (folder / FILE_NAME).is_file()), None)


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the file's values under flat keys. In the file, keys may be nested, flat or both."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(
            "The configuration file is not readable YAML", where=str(path), found=" ".join(str(error).split())
        ) from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ConfigurationError(
            "The configuration file does not hold keys and values",
            where=str(path),
            found=f"a {type(content).__name__}",
            cure="for example  parallelism.default: 2",
        )
    flat: dict[str, Any] = {}
    _flatten(content, "", flat)
    return flat


def _flatten(values: Mapping[Any, Any], prefix: str, flat: dict[str, Any]) -> None:
    for name, value in values.items():
        key = f"{prefix}{name}"
        option = SPELLINGS.get(key)
        if isinstance(value, dict) and not (option and option.type is MAP):
            _flatten(value, f"{key}.", flat)
        elif value is not None:
            flat[key] = value

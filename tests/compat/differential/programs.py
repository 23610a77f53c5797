"""Importing this module fills the catalog with every program."""

from differential import (
    api_programs,
    coercion_programs,
    file_programs,
    keyed_programs,
    lifecycle_programs,
    ownership_programs,
    state_programs,
    stateless_programs,
    timer_programs,
    typed_programs,
)

__all__ = [
    "api_programs",
    "coercion_programs",
    "file_programs",
    "keyed_programs",
    "lifecycle_programs",
    "ownership_programs",
    "state_programs",
    "stateless_programs",
    "timer_programs",
    "typed_programs",
]

"""Importing this module fills the catalog with every program."""

from differential import (
    api_programs,
    coercion_programs,
    container_state_programs,
    file_programs,
    function_programs,
    key_programs,
    keyed_programs,
    lifecycle_programs,
    ownership_programs,
    processing_time_programs,
    setting_programs,
    state_programs,
    stateless_programs,
    timer_programs,
    typed_programs,
)

__all__ = [
    "api_programs",
    "coercion_programs",
    "container_state_programs",
    "file_programs",
    "function_programs",
    "key_programs",
    "keyed_programs",
    "lifecycle_programs",
    "ownership_programs",
    "processing_time_programs",
    "setting_programs",
    "state_programs",
    "stateless_programs",
    "timer_programs",
    "typed_programs",
]

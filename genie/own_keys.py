"""The keys that are a command's own (``bisect.*``, ``preflight.*``), from words to the command's dataclass.

A run's keys go through Hydra (`genie.compose`); these are no keys of a run, so that a run refuses them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import yaml

from genie import schema
from genie.errors import ConfigError, closest

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

Settings = TypeVar("Settings", bound="DataclassInstance")


def settings_from(words: Sequence[str], kind: type[Settings], group: str) -> Settings:
    """``kind`` from words such as ``bisect.confidence=0.99`` with ``group`` "bisect". Raises ConfigError by the key."""
    values: dict[str, Any] = {}
    names = [field.name for field in dataclasses.fields(kind)]
    for word in words:
        key, equals, text = word.lstrip("+").partition("=")
        name = key.removeprefix(f"{group}.")
        if name not in names:
            raise ConfigError(f"there is no such key; {closest(name, names)}", key=key)
        if not equals or not text:
            raise ConfigError(f"a value is missing: write {key}=VALUE", key=key)
        if name in values:
            raise ConfigError("is given twice; leave one out", key=key)
        try:
            values[name] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise ConfigError(f"{text!r} cannot be read", key=key) from error
    made: Settings = schema.build(kind, values, group)
    return made

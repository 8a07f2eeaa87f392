"""Table of libraries of low precision, by the names of their sections; at most one is enabled."""

from __future__ import annotations

from neobert.precision.library import Conversion, Library
from neobert.precision.quartet2.spec import QUARTET2
from neobert.precision.torchao.spec import TORCHAO
from neobert.precision.transformer_engine.spec import TRANSFORMER_ENGINE

LIBRARIES: dict[str, Library] = {each.name: each for each in (TORCHAO, TRANSFORMER_ENGINE, QUARTET2)}


def enabled_conversions(config: object) -> list[Conversion]:
    """Return each library that a config enables, with its section."""
    sections = ((library, getattr(config, name)) for name, library in LIBRARIES.items())
    return [Conversion(library, section) for library, section in sections if section.enable]


def enabled_conversion(config: object) -> Conversion | None:
    """Return the first library that a config enables, with its section, or None if none is enabled."""
    return next(iter(enabled_conversions(config)), None)

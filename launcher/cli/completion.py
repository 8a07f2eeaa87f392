"""Shell completion of profiles, keys, rule codes and export formats."""

from __future__ import annotations

from collections.abc import Iterable


def profile_names(incomplete: str) -> list[str]:
    """Return the names of profiles that start with `incomplete`."""
    from profiles.registry import list_profiles

    return _names_with_prefix(list_profiles(), incomplete)


def config_keys(incomplete: str) -> list[str]:
    """Return the config keys that start with `incomplete`."""
    from neobert.config import all_keys

    return _names_with_prefix(all_keys(), incomplete)


def key_options(incomplete: str) -> list[str]:
    """Return the sections' keys that start with `incomplete`, as options such as `--trainer.max_steps`."""
    return [f"--{key}" for key in config_keys(incomplete.removeprefix("--")) if "." in key]


def rule_codes(incomplete: str) -> list[str]:
    """Return the rule codes that start with `incomplete`."""
    import validators.rules  # noqa: F401  registers every rule
    from validators.rule import RULES

    return _names_with_prefix(sorted(RULES), incomplete)


def export_formats(incomplete: str) -> list[str]:
    """Return the comma-separated lists of export formats that complete the last name of `incomplete`."""
    from neobert.export_formats import FORMATS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _names_with_prefix(FORMATS, last)]


def _names_with_prefix(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

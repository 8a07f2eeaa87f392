"""Shell completion of profiles, keys, rule codes and export formats."""

from __future__ import annotations

from collections.abc import Iterable


def profile_names(incomplete: str) -> list[str]:
    """Return the names of profiles that start with `incomplete`."""
    from profiles.registry import list_profiles

    return _beginning(list_profiles(), incomplete)


def keys(incomplete: str) -> list[str]:
    """Return the config keys that start with `incomplete`."""
    from neobert.config import all_keys

    return _beginning(all_keys(), incomplete)


def key_options(incomplete: str) -> list[str]:
    """Return the config keys that start with `incomplete`, spelled as options: `--trainer.max_steps`."""
    return [f"--{key}" for key in keys(incomplete.removeprefix("--")) if "." in key]


def rule_codes(incomplete: str) -> list[str]:
    """Return the rule codes that start with `incomplete`."""
    import validators.rules  # noqa: F401  registers every rule
    from validators.rule import RULES

    return _beginning(sorted(RULES), incomplete)


def export_formats(incomplete: str) -> list[str]:
    """Complete the last name in a comma-separated list of export formats."""
    from neobert.export_formats import FORMATS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(FORMATS, last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

"""Shell completion of profiles, keys, rule codes and export formats."""

from __future__ import annotations

from collections.abc import Iterable


def profile_names(incomplete: str) -> list[str]:
    """Complete the name of a profile."""
    from profiles.registry import list_profiles

    return _beginning(list_profiles(), incomplete)


def keys(incomplete: str) -> list[str]:
    """Complete a key of the config."""
    from neobert.config import all_keys

    return _beginning(all_keys(), incomplete)


def key_options(incomplete: str) -> list[str]:
    """Complete a key that is spelled as an option: `--trainer.max_steps`."""
    return [f"--{key}" for key in keys(incomplete.removeprefix("--")) if "." in key]


def rule_codes(incomplete: str) -> list[str]:
    """Complete the code of a rule."""
    import validators.rules  # noqa: F401  registers every rule
    from validators.rule import RULES

    return _beginning(sorted(RULES), incomplete)


def export_formats(incomplete: str) -> list[str]:
    """Complete the last name of a comma-separated list of export formats."""
    from neobert.export_formats import FORMATS

    before, comma, last = incomplete.rpartition(",")
    return [f"{before}{comma}{name}" for name in _beginning(FORMATS, last)]


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

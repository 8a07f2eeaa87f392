"""Shell completion of profiles, config keys and rules, after `--install-completion`."""

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


def _beginning(names: Iterable[str], incomplete: str) -> list[str]:
    return [name for name in names if name.startswith(incomplete)]

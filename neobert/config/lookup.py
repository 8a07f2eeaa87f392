"""Looking a key up by the name that a person typed."""

from __future__ import annotations

from neobert.config.keys import KeyInfo, all_keys, describe_field
from neobert.config.renamed import advice_for_key
from neobert.config.suggest import advice_for_near_name, suggest_key
from neobert.errors import EXIT_USAGE, ProjectError


def describe(key: str) -> KeyInfo:
    """What the schema says about a key or a section. Raises ProjectError (CFG001) with what was meant."""
    path = tuple(key.split("."))
    info = describe_field(path)
    if info is not None:
        return info
    near = suggest_key(key)
    guess = f"did you mean {near}?" if near else advice_for_near_name(path[-1])
    hint = advice_for_key(path) or guess or "`neobert-launch schema` lists the keys"
    raise ProjectError("CFG001", f"{key or repr(key)} is not a key", hint, exit_code=EXIT_USAGE)


def keys_named(name: str) -> list[str]:
    """The keys of all sections that have this name behind their last dot."""
    return [key for key in all_keys() if key.rpartition(".")[2] == name]

"""`profiles`: list, show and compare profiles."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

from launcher.terminal import console
from launcher.terminal.fold import fold
from launcher.terminal.table import format_columns
from launcher.terminal.values import origin_text, result_json, show_value
from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.errors import EXIT_OK
from neobert.printable import printable
from profiles.registry import Profile, Requirements, list_profiles, load_profile


def list_all(output_format: str) -> int:
    """Print the name, kind, hardware and intent of each profile; return 0."""
    profiles = [load_profile(name) for name in list_profiles()]
    if output_format == "json":
        console.write(result_json({"profiles": [_profile_json(profile) for profile in profiles]}))
    else:
        rows = [
            [profile.name, profile.kind, _hardware_text(profile.requires), profile.intent]
            for profile in profiles
        ]
        console.write(format_columns(rows))
    return EXIT_OK


def show(name: str, output_format: str, *, verbose: bool) -> int:
    """Print the values that the profile sets, or with `verbose` all values, each with its origin.

    Raises `ProjectError` for an unknown profile.
    """
    profile = load_profile(name)
    values = flatten(to_dict(profile.config))
    if output_format == "json":
        content = {
            key: {"value": value, "origin": profile.origins[key]._asdict()} for key, value in values.items()
        }
        console.write(result_json({**_profile_json(profile), "values": content}))
        return EXIT_OK
    shown = {key: value for key, value in values.items() if verbose or profile.origins[key].kind != "default"}
    rows = [[key, show_value(value), origin_text(profile.origins[key])] for key, value in shown.items()]
    head = fold("\n".join(_heading_lines(profile)), console.terminal_width())
    console.write(f"{head}\n{format_columns(rows, indent='  ')}")
    return EXIT_OK


def diff(first: str, second: str, output_format: str) -> int:
    """Print the keys in which two profiles differ, with both values.

    Raises `ProjectError` for an unknown profile.
    """
    left, right = (flatten(to_dict(load_profile(name).config)) for name in (first, second))
    changed = {
        key: (left.get(key), right.get(key))
        for key in sorted({*left, *right})
        if left.get(key) != right.get(key)
    }
    if output_format == "json":
        differing = {key: {first: old, second: new} for key, (old, new) in changed.items()}
        console.write(result_json({"keys": differing}))
    else:
        rows = [[key, show_value(old), show_value(new)] for key, (old, new) in changed.items()]
        console.write(format_columns([["", first, second], *rows]) if rows else "no key differs")
    return EXIT_OK


def _heading_lines(profile: Profile) -> Iterator[str]:
    yield console.paint(printable(f"{profile.name} ({profile.kind})"), "bold")
    yield printable(f"  {profile.intent}")
    mfu = f"{profile.expects.mfu:.0%}"
    yield printable(
        f"  requires {_hardware_text(profile.requires)}; expects an MFU of {mfu}{_price_text(profile)}"
    )
    yield printable(f"  from {', '.join(profile.files)}; {'pinned' if profile.is_locked else 'not pinned'}")


def _price_text(profile: Profile) -> str:
    rate = profile.expects.tokens_per_second
    basis = " (an estimate)" if profile.expects.is_estimate else " (measured)"
    return (f", {rate[0]:,.0f} to {rate[1]:,.0f} tokens/s" if rate else "") + basis


def _hardware_text(requires: Requirements) -> str:
    if requires.device == "cpu":
        return "CPU"
    memory = f", {requires.gpu_memory_gib:g} GiB" if requires.gpu_memory_gib else ""
    return f"{requires.num_gpus} x {requires.gpu or 'any GPU'}{memory}"


def _profile_json(profile: Profile) -> dict[str, Any]:
    return {
        "name": profile.name,
        "kind": profile.kind,
        "intent": profile.intent,
        "requires": asdict(profile.requires),
        "expects": asdict(profile.expects),
        "digest": profile.digest,
        "is_locked": profile.is_locked,
        "files": list(profile.files),
    }

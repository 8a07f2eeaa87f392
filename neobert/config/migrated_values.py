"""Values of other trainers in this schema's terms, for keys that have a counterpart here."""

from __future__ import annotations

import json
import re
from typing import Any

from neobert.config.annotations import annotation_at, choices_of
from neobert.config.hydrate import HydrationError, hydrate
from neobert.config.keys import all_keys
from neobert.config.nodes import Scalar
from neobert.config.schema import RunConfig

FP32, BF16 = "fp32", "bf16"
ATTENTION: dict[Scalar, str | int] = {
    True: "flash_attn_varlen",
    False: "sdpa",
    "eager": "sdpa",
    "flash_attention_2": "flash_attn_varlen",
}
PRECISION: dict[Scalar, str | int] = {
    True: BF16,
    False: FP32,
    "float32": FP32,
    "32": FP32,
    32: FP32,
    "bfloat16": BF16,
    "bf16-mixed": BF16,
}
WORDS: dict[str, dict[Scalar, str | int]] = {
    "model.attn_backend": ATTENTION,
    "trainer.mixed_precision": PRECISION,
    "trainer.save_steps": {"no": 0, "never": 0},
    "trainer.eval_steps": {"no": 0, "never": 0},
    "dataset.long_documents": {True: "truncate"},
}
PLAIN = re.compile(r"write (\w+\.\w+)(?: and (\w+\.\w+))?")
LONGEST_SHOWN = 60


def in_our_words(target: str, value: Scalar) -> Scalar:
    """Translate another trainer's value of `target`; any other value stays."""
    for theirs, ours in WORDS.get(target, {}).items():
        if theirs == value and type(theirs) is type(value):
            return ours
    return value


def is_legal(target: str, value: Any) -> bool:
    """Return whether the schema accepts a value for a key."""
    nested: Any = value
    for name in reversed(target.split(".")):
        nested = {name: nested}
    try:
        hydrate(RunConfig, nested)
    except HydrationError:
        return False
    return True


def with_value(advice: str, value: object) -> str:
    """Add to `write KEY` the value to write there, or the choices if the value has no counterpart."""
    written = PLAIN.fullmatch(advice)
    if not written or isinstance(value, dict | tuple):
        return advice
    targets = [target for target in written.groups() if target in all_keys()]
    return "write " + " and ".join(f"{target}{_value_text(target, value)}" for target in targets)


def _value_text(target: str, value: Any) -> str:
    translated = in_our_words(target, value)
    if (
        value is not None
        and is_legal(target, translated)
        and len(text := yaml_text(translated)) <= LONGEST_SHOWN
    ):
        return f": {text}"
    choices = choices_of(annotation_at(tuple(target.split("."))))
    return f": {' or '.join(choices)}" if choices else ""


def yaml_text(value: Scalar) -> str:
    """Write a scalar as YAML does; text that could be read as something else in quotes."""
    if (
        isinstance(value, str)
        and re.fullmatch(r"[A-Za-z_/][\w./-]*", value)
        and not _is_a_word_of_yaml(value)
    ):
        return value
    return json.dumps(value, ensure_ascii=False)


def _is_a_word_of_yaml(text: str) -> bool:
    return text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")

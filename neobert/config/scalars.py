"""Plain scalars by the core schema of YAML 1.2.

`6e-4` and `1e-5` are numbers; `no`, `on`, `1:30`, `1_000` and dates are text; octal is `0o17`.
"""

from __future__ import annotations

import re

from neobert.config.nodes import LARGEST_INT, Scalar

NULLS = frozenset({"", "~", "null", "Null", "NULL"})
BOOLS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
DECIMAL = re.compile(r"[-+]?[0-9]+")
OCTAL = re.compile(r"0o[0-7]+")
HEXADECIMAL = re.compile(r"0x[0-9a-fA-F]+")
FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
INFINITY = re.compile(r"[-+]?\.(?:inf|Inf|INF)")
NOT_A_NUMBER = re.compile(r"\.(?:nan|NaN|NAN)")

MOST_DIGITS = 4000


def read_scalar(text: str) -> Scalar:
    """Read a plain scalar. Infinities and NaN come back as floats: the caller says where they stand."""
    if text in NULLS:
        return None
    if text in BOOLS:
        return BOOLS[text]
    number = read_number(text)
    return text if number is None else number


def read_number(text: str) -> int | float | None:
    """Read a number, or None where the text is none."""
    if DECIMAL.fullmatch(text):
        return int(text) if len(text) < MOST_DIGITS else LARGEST_INT + 1
    if FLOAT.fullmatch(text):
        return float(text)
    if OCTAL.fullmatch(text):
        return int(text[2:], 8)
    if HEXADECIMAL.fullmatch(text):
        return int(text[2:], 16)
    if INFINITY.fullmatch(text):
        return float(text.replace(".", ""))
    return float("nan") if NOT_A_NUMBER.fullmatch(text) else None

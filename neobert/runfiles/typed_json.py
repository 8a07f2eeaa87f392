"""Parsing of JSON from files and other processes into dataclasses, with pydantic.

pydantic is imported by the first call, which saves commands that read no such JSON 0.05 s of CPU time.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeVar

from neobert.schema_fields import STRICT

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")
WRONG_VALUE = "Input should "
"""Start of pydantic's messages about a value."""
UNKNOWN_FIELD = "unexpected_keyword_argument"
MARK, SHIFT = "\uffff", 0x10_0000
ENCODABLE = {code: f"{MARK}{chr(code + SHIFT)}" for code in range(0xD800, 0xE000)} | {ord(MARK): MARK + MARK}
"""Escapes of lone surrogates, which file names that are not UTF-8 have and pydantic rejects."""
ENCODED = re.compile(f"{MARK}(.)")


def parse_as(kind: type[T], content: Any, modules: tuple[ModuleType, ...] = ()) -> T:
    """Parse JSON content into a dataclass. Raises `ValueError` that names the first wrong field.

    Strict: no unknown fields, no conversions, no NaN or infinity. An integer is accepted as a float.

    Args:
        modules: modules that define annotations which the module of `kind` imports only for type checking.
    """
    from pydantic import ValidationError

    try:
        adapter = _type_adapter(kind, modules)  # type: ignore[arg-type]  # mypy knows no type[T] as hashable
        text = json.dumps([content], ensure_ascii=False)
        value: T = adapter.validate_json(text.translate(ENCODABLE))[0]
    except ValidationError as error:
        raise ValueError(_format_error(kind.__name__, error.errors(include_url=False)[0])) from None
    return value if text.isascii() else _decode_surrogates(value)


def _decode_surrogates(value: Any) -> Any:
    """Restore file names that are not valid UTF-8 in a value, recursively."""
    if isinstance(value, str):
        return ENCODED.sub(_decode_surrogate, value)
    if isinstance(value, list | tuple):
        return type(value)(map(_decode_surrogates, value))
    if isinstance(value, dict):
        return {_decode_surrogates(name): _decode_surrogates(each) for name, each in value.items()}
    if is_dataclass(value) and not isinstance(value, type):
        return replace(
            value, **{each.name: _decode_surrogates(getattr(value, each.name)) for each in fields(value)}
        )
    return value


def _decode_surrogate(escape: re.Match[str]) -> str:
    return MARK if escape[1] == MARK else chr(ord(escape[1]) - SHIFT)


def _format_error(name: str, error: Mapping[str, Any]) -> str:
    place, message = ".".join(map(str, error["loc"][1:])) or name, str(error["msg"])
    if error["type"] == UNKNOWN_FIELD:
        return f"{place}: unknown field"
    if not message.startswith(WRONG_VALUE):
        return f"{place}: {message[0].lower()}{message[1:]}"
    return f"{place} should {message.removeprefix(WRONG_VALUE)}, got {reprlib.repr(error['input'])}"


@cache
def _type_adapter(kind: Any, modules: tuple[ModuleType, ...]) -> TypeAdapter[tuple[Any]]:
    from pydantic import ConfigDict, TypeAdapter

    names = {name: each for module in modules for name, each in vars(module).items()}
    # pydantic takes the settings of a dataclass from the dataclass only; those of a tuple apply inside it.
    settings = ConfigDict(**STRICT, defer_build=True)  # type: ignore[typeddict-item]
    adapter: TypeAdapter[tuple[Any]] = TypeAdapter(tuple[kind], config=settings)
    adapter.rebuild(_types_namespace=names)
    return adapter

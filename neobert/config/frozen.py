"""A mapping that nobody writes to, for the free values of a frozen configuration."""

from __future__ import annotations

from typing import Any, NoReturn


class FrozenDict(dict[str, Any]):
    """A dict that refuses every change. It pickles, copies and serialises as a dict does."""

    __slots__ = ()

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise TypeError("the configuration is frozen: build another with neobert.config.replace")

    __setitem__ = __delitem__ = __ior__ = _refuse
    clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


def freeze(value: Any) -> Any:
    """Freeze a plain value all the way down: FrozenDict for mappings, tuples for lists."""
    if isinstance(value, dict):
        return FrozenDict({name: freeze(child) for name, child in value.items()})
    if isinstance(value, list | tuple):
        return tuple(freeze(item) for item in value)
    return value

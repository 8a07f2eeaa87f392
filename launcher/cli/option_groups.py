"""Options that several commands declare once, and receive as one object."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

Command = Callable[..., None]


def with_options_of(build: Callable[..., Any]) -> Callable[[Command], Command]:
    """Replace the first parameter of a command by those of `build`, which returns its value.

    Parameters with a default come last, as Python requires; the parser does not depend on their order.
    """

    def decorate(command: Command) -> Command:
        declared = inspect.signature(build, eval_str=True).parameters
        first, *own = inspect.signature(command, eval_str=True).parameters.values()

        def run(**given: Any) -> None:
            settings = {name: given.pop(name) for name in declared}
            command(**{first.name: build(**settings)}, **given)

        parameters = sorted([*declared.values(), *own], key=lambda each: each.default is not each.empty)
        run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        run.__name__, run.__doc__ = command.__name__, command.__doc__
        return run

    return decorate

"""Operators that `torch.compile` calls without tracing into them."""

from collections.abc import Callable
from typing import Any

import torch

NAMESPACE = "neobert"
_LIBRARY = torch.library.Library(NAMESPACE, "FRAGMENT")


def operator(function: Callable[..., Any]) -> Any:
    """Decorator that registers `_NAME`, a function that changes no argument, as operator `neobert::NAME`.

    `torch.library.custom_op` wraps a function in others, which take 40 microseconds of the host at each call:
    with the 350 calls of a microbatch of 28 blocks, the GPU waited for the host.
    """
    name = function.__name__.removeprefix("_")
    _LIBRARY.define(
        name + torch.library.infer_schema(function, mutates_args=()), tags=(torch.Tag.pt2_compliant_tag,)
    )
    _LIBRARY.impl(name, function, "CompositeExplicitAutograd")
    overload = getattr(getattr(torch.ops, NAMESPACE), name).default
    overload.__wrapped__ = function
    return overload


def register_fake(operator: Any) -> Callable[..., Any]:
    """Return a decorator that registers an operator's fake implementation: empty results, for tracing."""
    decorate: Callable[..., Any] = torch.library.register_fake(operator.name(), lib=_LIBRARY)
    return decorate


def differentiate(operator: Any, backward: Callable[..., Any], save: Callable[..., None]) -> None:
    """Register the gradient of an operator, and what its forward pass saves for it."""
    torch.library.register_autograd(operator.name(), backward, setup_context=save, lib=_LIBRARY)

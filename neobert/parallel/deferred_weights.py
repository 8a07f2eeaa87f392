"""Models that are built without memory for their weights, and the initialization that fills them afterwards.

Parameters are on the meta device; buffers, such as rotary frequencies, have their values: `to_empty` on a
whole model would leave them as noise. The operations that initialize the parameters are recorded. They run
later in the same order and from the same state of the random generator as in a model that is built with
memory, so the values do not depend on the number of ranks. Only one parameter at a time is in memory in full.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter, tree_map

ATEN = torch.ops.aten
EMPTY = {ATEN.empty.memory_format, ATEN.empty_strided.default, ATEN.empty_like.default}
"""Operators whose results hold no values yet."""
COPY = ATEN.copy_.default
OVERWRITING = {ATEN.normal_, ATEN.uniform_, ATEN.fill_, ATEN.zero_, ATEN.copy_}
"""In-place operators whose result does not depend on the earlier values."""
TRUNCATED = nn.init._no_grad_trunc_normal_


class _StorageView(NamedTuple):
    """Values of a storage that a meta tensor stands for."""

    storage: int
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    dtype: torch.dtype


@dataclass(frozen=True, slots=True)
class _RecordedCall:
    """Recorded call. Meta tensors among the arguments are `_StorageView`; the first one is the target.

    Attributes:
        result: new tensor; None for an in-place operator.
        overwrites: the result does not depend on the earlier values of the target.
        draws: the call advances the random generator.
    """

    function: Any
    arguments: tuple[Any, ...]
    named: dict[str, Any]
    result: _StorageView | None = None
    overwrites: bool = False
    draws: bool = False

    @property
    def views(self) -> list[_StorageView]:
        leaves = tree_iter((self.arguments, self.named), is_leaf=_is_view)
        return [value for value in leaves if _is_view(value)]


class DeferredWeights(TorchDispatchMode):
    """Record of the initialization of a model's parameters. Use `defer_weights` to build the model."""

    def __init__(self) -> None:
        super().__init__()
        self._generator: Tensor | None = None
        self._steps: list[_RecordedCall] = []
        self._storages: dict[int, Any] = {}  # kept alive: the key is an address
        self._empty: set[int] = set()
        self._parameters: dict[int, tuple[str, torch.Size, tuple[int, ...]]] = {}
        self._tied_names: list[str] = []
        self._buffers: dict[str, Tensor] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run an operator, and record it if it fills a meta tensor."""
        named = kwargs or {}
        result = function(*args, **named)
        given = [value for value in tree_iter((args, named)) if isinstance(value, Tensor)]
        self._record_empty(function, given, result)
        if any(value.is_meta for value in given):
            is_new = (
                isinstance(result, Tensor) and result.is_meta and _storage_key(result) not in self._storages
            )
            if function._schema.is_mutable or is_new:
                self._record_call(
                    function,
                    args,
                    named,
                    result=self._to_view(result) if is_new else None,
                    overwrites=function.overloadpacket in OVERWRITING,
                    draws=torch.Tag.nondeterministic_seeded in function.tags,
                )
        return result

    def draw_truncated(self, tensor: Tensor, *arguments: Any, **named: Any) -> Tensor:
        """Record `trunc_normal_` as one call: it draws until all values are in range, so it must see them."""
        if not tensor.is_meta:
            return TRUNCATED(tensor, *arguments, **named)
        self._record_call(TRUNCATED, (tensor, *arguments), named, overwrites=True, draws=True)
        return tensor

    def _record_call(self, function: Any, arguments: Any, named: Any, **kind: Any) -> None:
        if kind.get("draws") and self._generator is None:
            self._generator = torch.get_rng_state()
        arguments, named = tree_map(self._to_view, (tuple(arguments), named))
        self._steps.append(_RecordedCall(function, arguments, named, **kind))

    def move_to_meta(self, parameter: nn.Parameter | None) -> nn.Parameter | None:
        """Return a parameter without memory; a value that it already has is recorded. None stays None."""
        if parameter is None or parameter.is_meta:
            return parameter
        meta = nn.Parameter(torch.empty_like(parameter, device="meta"), parameter.requires_grad)
        vars(meta).update(vars(parameter))
        if _storage_key(parameter) not in self._empty:
            self._record_call(COPY, (meta, parameter.detach()), {}, overwrites=True)
        return meta

    def record_module(self, module: nn.Module) -> None:
        """Record the parameters, ties and buffers of the new module, before sharding replaces them."""
        self._tied_names = _tied_names(module)
        self._buffers = {name: value.clone() for name, value in module.named_buffers()}
        self._parameters = {
            _storage_key(value): (name, value.shape, value.stride())
            for name, value in module.named_parameters()
            if value.is_meta
        }

    def check_nothing_lost(self, module: nn.Module) -> None:
        """Raise `RuntimeError` if a parameter has no memory, a tie is gone, or buffers have other values."""
        lost = [name for name, value in module.named_parameters() if value.is_meta]
        lost += sorted({*self._tied_names} - {*_tied_names(module)})
        found = dict(module.named_buffers())
        lost += [
            name
            for name, value in self._buffers.items()
            if not torch.equal(found[name].to(value.device), value)
        ]
        if lost:
            raise RuntimeError(f"sharding lost parameters, ties or buffers of the model: {', '.join(lost)}")

    @torch.no_grad()
    def fill(self, take: Callable[[str, Tensor], None]) -> None:
        """Initialize the parameters; `take` receives the name and values of each in turn.

        Leaves the random generator in the state that it has after building the model with memory.
        """
        if self._generator is not None:
            torch.set_rng_state(self._generator)
        last = {view.storage: index for index, step in enumerate(self._steps) for view in _all_views(step)}
        live = self._first_live_steps()
        held: dict[int, Tensor] = {}
        for index, step in enumerate(self._steps):
            target = step.views[0].storage
            if index == live.get(target) and index == last[target] and step.function is COPY:
                held[target] = step.arguments[1]  # values in a file: `take` reads the rows that it needs
            elif index >= live.get(target, 0):
                self._replay(step, held)
            elif step.draws:
                self._replay(step, {})  # overwritten later: only the generator has to advance
            for storage in {view.storage for view in _all_views(step)}:
                if last[storage] == index and storage in held:
                    values = held.pop(storage)
                    if storage in self._parameters:
                        name, shape, stride = self._parameters[storage]
                        take(name, values if values.shape == shape else values.as_strided(shape, stride))

    def _replay(self, step: _RecordedCall, held: dict[int, Tensor]) -> None:
        def resolve_argument(value: Any) -> Any:
            return self._materialize(value, held) if _is_view(value) else value

        arguments, named = tree_map(resolve_argument, (step.arguments, step.named), is_leaf=_is_view)
        result = step.function(*arguments, **named)
        if step.result is not None:
            self._materialize(step.result, held).copy_(result)

    def _materialize(self, view: _StorageView, held: dict[int, Tensor]) -> Tensor:
        if view.storage not in held:
            num_bytes = self._storages[view.storage].nbytes()
            held[view.storage] = torch.empty(num_bytes // view.dtype.itemsize, dtype=view.dtype)
        return held[view.storage].as_strided(view.size, view.stride, view.offset)

    def _first_live_steps(self) -> dict[int, int]:
        """Return the index of the last step that overwrites a whole storage; the results before are lost.

        A storage that another one is computed from keeps all its steps.
        """
        live: dict[int, int] = {}
        read = {view.storage for step in self._steps for view in step.views[1:]}
        read |= {step.views[0].storage for step in self._steps if step.result is not None}
        for index, step in enumerate(self._steps):
            target = step.views[0]
            is_whole = torch.Size(target.size).numel() * target.dtype.itemsize == self._num_bytes(target)
            if step.overwrites and is_whole and target.storage not in read:
                live[target.storage] = index
        return live

    def _num_bytes(self, view: _StorageView) -> int:
        return int(self._storages[view.storage].nbytes())

    def _to_view(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_meta:
            return value
        self._storages[_storage_key(value)] = value.untyped_storage()
        return _StorageView(
            _storage_key(value), tuple(value.shape), value.stride(), int(value.storage_offset()), value.dtype
        )

    def _record_empty(self, function: Any, given: Sequence[Tensor], result: Any) -> None:
        if function in EMPTY:
            self._empty.add(_storage_key(result))
        elif function._schema.is_mutable:
            self._empty -= {_storage_key(value) for value in given}
        elif isinstance(result, Tensor) and not any(
            _storage_key(value) == _storage_key(result) for value in given
        ):
            self._empty.discard(_storage_key(result))  # the address of a storage that was freed


@contextmanager
def defer_weights() -> Iterator[DeferredWeights]:
    """Create all parameters in the `with` block without memory, and record their initialization."""
    recorder, register = DeferredWeights(), nn.Module.register_parameter

    def register_parameter(module: nn.Module, name: str, parameter: nn.Parameter | None) -> None:
        register(module, name, recorder.move_to_meta(parameter))

    nn.Module.register_parameter = register_parameter  # type: ignore[method-assign, assignment]
    nn.init._no_grad_trunc_normal_ = recorder.draw_truncated
    try:
        with recorder:
            yield recorder
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]
        nn.init._no_grad_trunc_normal_ = TRUNCATED


def _tied_names(module: nn.Module) -> list[str]:
    """Return the further names of parameters with several names, each with its first name."""
    first: dict[int, str] = {}
    named = module.named_parameters(remove_duplicate=False)
    pairs = [(first.setdefault(id(value), name), name) for name, value in named]
    return [f"{name} = {own}" for own, name in pairs if own != name]


def _storage_key(tensor: Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _is_view(value: Any) -> bool:
    return isinstance(value, _StorageView)


def _all_views(step: _RecordedCall) -> list[_StorageView]:
    return [*step.views, *([] if step.result is None else [step.result])]

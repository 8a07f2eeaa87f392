"""Numerical faults of a path, from the probes' measurements; also used to detect planted faults."""

# ruff: noqa: ARG001  (one signature for every probe)

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from neobert.kernel_table import ATTENTION
from neobert.plurals import counted

if TYPE_CHECKING:
    from validators.facts_numerics import (
        IsolationFacts,
        MutantFacts,
        NumericsFacts,
        PathFacts,
        ProbeFacts,
        ProbeName,
        RepeatFacts,
    )

MAX_ERROR_RATIO = 2.0
# Angles computed in fp32 and stored in fp32 or fp16 stay below these; angles in bf16 do not.
ROTATION_ERROR = 2.0**-10
ROTATION_ERROR_PER_POSITION = 2.0**-22
# Their backward pass accumulates the gradient of the queries with atomics, in the order of block completion.
ATOMIC_GRADIENTS = [name for name, kernel in ATTENTION.items() if not kernel.is_deterministic]
MAX_NAMED = 2

Faults = Iterator[str]


def _isolation_faults(path: PathFacts, probes: ProbeFacts) -> Faults:
    if probes.isolation is not None:
        yield from _leak_faults(probes.isolation, "another segment")


def _padding_faults(path: PathFacts, probes: ProbeFacts) -> Faults:
    if probes.padding is not None:
        yield from _leak_faults(probes.padding, "the padding")


def _leak_faults(isolation: IsolationFacts, source: str) -> Faults:
    if isolation.leaked_tokens and not isolation.unstable:
        yield (
            f"{isolation.leaked_tokens:,} tokens attend to {source}: {isolation.observed} change by up to "
            f"{isolation.largest_leak:.2g} (must be bit-exact)"
        )
    if isolation.largest_cross_gradient:
        yield f"a gradient of {isolation.largest_cross_gradient:.2g} reaches {source} (must be 0)"
    if isolation.responding < isolation.victims:
        yield "the perturbed tokens did not change their own outputs, so the probe is inconclusive"
    if not isolation.smallest_own_gradient:
        yield "the loss has no gradient at its own embeddings, so the probe is inconclusive"


def _direction_faults(path: PathFacts, probes: ProbeFacts) -> Faults:
    direction = probes.direction
    if direction is None:
        return
    is_causal = path.declared == "causal"
    if is_causal and direction.early_moved:
        yield f"early tokens attend to later ones in {direction.early_moved} documents of a causal model"
    if not is_causal and direction.early_moved < direction.documents:
        blind = direction.documents - direction.early_moved
        yield f"the first token does not attend to later ones in {blind} of {direction.documents} documents"
    if direction.late_moved < direction.documents or not direction.documents:
        yield "the last token does not attend to earlier ones"


def _parity_faults(path: PathFacts, probes: ProbeFacts) -> Faults:
    parity = probes.parity
    if parity is None:
        return
    if not parity.is_finite:
        yield "loss or gradients are not finite"
    ratios = {
        "maximum error of the logits": parity.forward_max_ratio,
        "mean error of the logits": parity.forward_mean_ratio,
        "maximum error of the gradients": parity.backward_max_ratio,
        "mean error of the gradients": parity.backward_mean_ratio,
    }
    for name, ratio in ratios.items():
        if ratio is not None and ratio > MAX_ERROR_RATIO:
            yield (
                f"the {name} is {ratio:.3g} times the rounding error without packing "
                f"(limit {MAX_ERROR_RATIO:g})"
            )


def _rotation_faults(path: PathFacts, probes: ProbeFacts) -> Faults:
    rotation = probes.rotation
    if rotation is None:
        return
    if rotation.misplaced:
        yield f"{rotation.misplaced:,} tokens are rotated by positions that do not restart in each document"
    limit = max(ROTATION_ERROR, rotation.max_position * ROTATION_ERROR_PER_POSITION)
    if not rotation.misplaced and rotation.largest_error > limit:
        yield f"rotations have an error of {rotation.largest_error:.2g} (limit {limit:.2g}, reached by fp32)"


def _repeatability_faults(path: PathFacts, probes: ProbeFacts) -> Faults:
    repeats = probes.repeats
    if repeats is None:
        return
    if repeats.loss_moved:
        yield f"the losses of two identical steps differ by {repeats.loss_moved:.2g}"
    elif repeats.tensors_moved and path.attention not in ATOMIC_GRADIENTS:
        yield (
            f"two identical steps differ in {_describe_changed_gradients(repeats)}, by up to "
            f"{repeats.gradient_moved:.2g} of the largest entry"
        )


def _describe_changed_gradients(repeats: RepeatFacts) -> str:
    """Return the names of the changed gradients if they are few and recorded, else their number."""
    if repeats.moved and repeats.tensors_moved <= MAX_NAMED:
        return f"the gradient of {' and '.join(repeats.moved)}"
    first = f", the first of {repeats.moved[0]}" if repeats.moved else ""
    return f"{counted(repeats.tensors_moved, 'gradient')}{first}"


FAULTS: dict[ProbeName, Callable[[PathFacts, ProbeFacts], Faults]] = {
    "isolation": _isolation_faults,
    "padding": _padding_faults,
    "direction": _direction_faults,
    "parity": _parity_faults,
    "rotation": _rotation_faults,
    "repeats": _repeatability_faults,
}


def is_fault_detected(path: PathFacts, mutant: MutantFacts) -> bool:
    """Return whether the responsible probe detected a planted fault."""
    return any(FAULTS[mutant.probe](path, mutant.probes))


def count_detected_faults(numerics: NumericsFacts) -> tuple[int, int]:
    """Return the number of planted faults that were detected, and of all planted faults."""
    killed = [is_fault_detected(path, mutant) for path in numerics.paths for mutant in path.mutants]
    return sum(killed), len(killed)

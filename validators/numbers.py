"""What is wrong with the numbers of a path, by the probe that measured them; planted faults judged alike."""

# ruff: noqa: ARG001  (one signature for every probe)

from __future__ import annotations

from collections.abc import Callable, Iterator

from neobert.plurals import counted
from validators.facts_num import (
    IsolationFacts,
    MutantFacts,
    NumericsFacts,
    PathFacts,
    ProbeFacts,
    ProbeName,
    RepeatFacts,
)

MAX_ERROR_RATIO = 2.0
# fp32 angles, stored in fp32 or fp16, stay below; angles in bf16, or stored in it, do not.
ROTATION_ERROR = 2.0**-10
ROTATION_ERROR_PER_POSITION = 2.0**-22
# Their backward pass adds to the gradient of the queries by atomics, in whatever order the blocks arrive.
ATOMIC_GRADIENTS = ("flash_attn_4", "flash_attn_3", "flash_attn_2", "torch_varlen", "sdpa")
MOST_NAMED = 2

Faults = Iterator[str]


def _isolation(path: PathFacts, probes: ProbeFacts) -> Faults:
    if probes.isolation is not None:
        yield from _leaks(probes.isolation, "another segment")


def _padding(path: PathFacts, probes: ProbeFacts) -> Faults:
    if probes.padding is not None:
        yield from _leaks(probes.padding, "the padding")


def _leaks(found: IsolationFacts, source: str) -> Faults:
    if found.leaked_tokens and not found.unstable:
        yield (
            f"{found.leaked_tokens:,} tokens hear of {source}: {found.observed} move by up to "
            f"{found.largest_leak:.2g}, and no bit may"
        )
    if found.largest_cross_gradient:
        yield f"a gradient of {found.largest_cross_gradient:.2g} reaches {source}, where exactly 0 belongs"
    if found.responding < found.victims or not found.smallest_own_gradient:
        yield "what was disturbed did not respond either, so that nothing was shown"


def _direction(path: PathFacts, probes: ProbeFacts) -> Faults:
    found = probes.direction
    if found is None:
        return
    is_causal = path.declared == "causal"
    if is_causal and found.early_moved:
        yield f"early tokens hear of late ones in {found.early_moved} documents of a causal model"
    if not is_causal and found.early_moved < found.documents:
        deaf = found.documents - found.early_moved
        yield f"the first token does not hear of late ones in {deaf} of {found.documents} documents"
    if found.late_moved < found.documents or not found.documents:
        yield "the last token does not hear of early ones"


def _parity(path: PathFacts, probes: ProbeFacts) -> Faults:
    found = probes.parity
    if found is None:
        return
    if not found.is_finite:
        yield "loss or gradients are not finite"
    ratios = {
        "largest error of the logits": found.forward_max_ratio,
        "mean error of the logits": found.forward_mean_ratio,
        "largest error of the gradients": found.backward_max_ratio,
        "mean error of the gradients": found.backward_mean_ratio,
    }
    for name, ratio in ratios.items():
        if ratio is not None and ratio > MAX_ERROR_RATIO:
            yield (
                f"the {name} is {ratio:.3g} times what the precision costs without packing; "
                f"{MAX_ERROR_RATIO:g} is the most"
            )


def _rotation(path: PathFacts, probes: ProbeFacts) -> Faults:
    found = probes.rotation
    if found is None:
        return
    if found.misplaced:
        yield f"{found.misplaced:,} tokens are turned by positions that do not start anew in their document"
    limit = max(ROTATION_ERROR, found.max_position * ROTATION_ERROR_PER_POSITION)
    if not found.misplaced and found.largest_error > limit:
        yield f"rotations are off by {found.largest_error:.2g}; computed in fp32 they are within {limit:.2g}"


def _repeats(path: PathFacts, probes: ProbeFacts) -> Faults:
    found = probes.repeats
    if found is None:
        return
    if found.loss_moved:
        yield f"two identical steps have losses that differ by {found.loss_moved:.2g}"
    elif found.tensors_moved and path.attention not in ATOMIC_GRADIENTS:
        yield (
            f"two identical steps differ in {_named(found)}, by up to {found.gradient_moved:.2g} of the "
            "largest entry"
        )


def _named(found: RepeatFacts) -> str:
    """The gradients that moved: by name where there are few and their names were recorded."""
    if found.moved and found.tensors_moved <= MOST_NAMED:
        return f"the gradient of {' and '.join(found.moved)}"
    first = f", that of {found.moved[0]} first" if found.moved else ""
    return f"{counted(found.tensors_moved, 'gradient')}{first}"


FAULTS: dict[ProbeName, Callable[[PathFacts, ProbeFacts], Faults]] = {
    "isolation": _isolation,
    "padding": _padding,
    "direction": _direction,
    "parity": _parity,
    "rotation": _rotation,
    "repeats": _repeats,
}


def is_killed(path: PathFacts, mutant: MutantFacts) -> bool:
    """Whether the probe that must see a planted fault saw it."""
    return any(FAULTS[mutant.probe](path, mutant.probes))


def count_killed(numerics: NumericsFacts) -> tuple[int, int]:
    """Count the planted faults that were seen, and all of them."""
    seen = [is_killed(path, mutant) for path in numerics.paths for mutant in path.mutants]
    return sum(seen), len(seen)

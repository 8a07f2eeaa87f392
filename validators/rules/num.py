"""NUM: the numbers that a training step makes, as the probes measured them, planted faults among them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_num import NumericsFacts, PathFacts, ProbeFacts, ProbeName
from validators.finding import Level, Severity, Violation
from validators.numbers import FAULTS, is_killed
from validators.rule import CannotTellError, Violations, rule

PATH = "model.attn_backend"
INITIAL_LOSS_SHARE = 0.15
OF_A_COMPILED_PATH: tuple[ProbeName, ...] = ("isolation", "parity", "repeats")
OTHER_BACKEND = "do not train on this path: choose another model.attn_backend or model.kernel_backend"


@dataclass(slots=True)
class _Judged:
    """What the facts of all paths say: faults, and what could not be told."""

    faults: list[str] = field(default_factory=list)
    doubts: list[str] = field(default_factory=list)

    def conclude(self, hint: str) -> Violations:
        """Yield the faults; without any, doubts leave the check unknown."""
        yield from (Violation(PATH, fault, hint) for fault in self.faults)
        if self.doubts and not self.faults:
            raise CannotTellError("; ".join(self.doubts))


def _judge(plan: Plan, facts: Facts, names: tuple[ProbeName, ...]) -> _Judged:
    judged = _Judged()
    assert facts.numerics is not None
    for path in facts.numerics.paths:
        if path.error:
            judged.doubts.append(f"{path.label}: the probes stopped: {path.error}")
        for name in _expected(path, names, has_rotation=plan.shape.positions == "rotary"):
            judged.faults += [f"{path.label}: {fault}" for fault in FAULTS[name](path, path.probes)]
            judged.faults += _survivors(path, name)
            judged.doubts += [] if path.error else _doubts(path, name)
    if not facts.numerics.paths:
        judged.doubts.append("no path was probed")
    return judged


def _expected(path: PathFacts, names: tuple[ProbeName, ...], *, has_rotation: bool) -> Iterator[ProbeName]:
    for name in names:
        if path.is_compiled and name not in OF_A_COMPILED_PATH:
            continue
        if name != "rotation" or has_rotation:
            yield name


def _survivors(path: PathFacts, name: ProbeName) -> Iterator[str]:
    for mutant in path.mutants:
        if mutant.probe == name and not _is_unstable(mutant.probes) and not is_killed(path, mutant):
            yield f"{path.label}: the probe does not see a planted fault ({mutant.name}), and proves nothing"


def _doubts(path: PathFacts, name: ProbeName) -> Iterator[str]:
    if getattr(path.probes, name) is None:
        yield f"{path.label}: {name} was not measured"
    elif name in ("isolation", "padding") and _is_unstable(path.probes):
        yield f"{path.label}: two identical passes differ, so that a leak cannot be told from noise"
    elif not path.is_compiled and not any(mutant.probe == name for mutant in path.mutants):
        yield f"{path.label}: no fault was planted for {name}"


def _is_unstable(probes: ProbeFacts) -> bool:
    return any(found is not None and found.unstable > 0 for found in (probes.isolation, probes.padding))


@rule(
    "NUM001",
    "leak-between-segments",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("numerics",),
    any_device=True,
)
def leak_between_segments(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Tokens of one document that reach another, or the padding's that reach any.

    ## What it does
    Fails where disturbing one segment of a packed microbatch moves a single bit of another, where a gradient
    crosses, where padding is heard, where another attention kernel ran than was resolved, and where a
    probe overlooks a fault that was planted for it. A kernel that does not repeat itself leaves it unknown.

    ## Why is this bad?
    A contaminated run trains. Its loss falls, its model is worse, and no tolerance finds one leaked key:
    the error of a sound kernel is as large.

    ## Example
    ```text
    a packed batch with an all-ones attention_mask: every document reads every other
    ```

    ## Use instead
    ```text
    neobert-launch validate-gpu --full, and a backend that it passes
    ```
    """
    judged = _judge(plan, facts, ("isolation", "padding"))
    assert facts.numerics is not None
    for path in facts.numerics.paths:
        if (path.dispatched or not path.error) and path.dispatched != path.attention:
            ran = path.dispatched or "none that said so"
            judged.faults.append(f"{path.label}: {path.attention} was resolved, and {ran} ran")
    yield from judged.conclude(OTHER_BACKEND)


@rule(
    "NUM002",
    "packed-differs-from-alone",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("numerics",),
    any_device=True,
)
def packed_differs_from_alone(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A packed step whose numbers are not those of its documents alone.

    ## What it does
    Holds logits and gradients against fp64 formulas, document by document. Fails where the largest or the
    mean error is over twice that of the same formulas in the run's precision, where positions do not start
    anew in each document, where rotations are coarser than fp32 makes them, where a step over the longest
    document is not finite, or where a new model's loss is more than 15 % from ln(vocabulary).

    ## Why is this bad?
    The error is small enough to train with and large enough to cost quality, and nobody looks for it later.

    ## Example
    ```text
    rotary angles in bf16: positions 257 and 258 are the same
    ```

    ## Use instead
    ```text
    angles in fp32; a backend that validate-gpu passes
    ```
    """
    judged = _judge(plan, facts, ("parity", "rotation"))
    assert facts.numerics is not None
    judged.faults += _of_the_model(facts.numerics)
    yield from judged.conclude(OTHER_BACKEND)


def _of_the_model(numerics: NumericsFacts) -> Iterator[str]:
    for path in numerics.paths:
        if path.is_long_finite is False:
            yield f"{path.label}: a step over one document of {path.long_length:,} tokens is not finite"
    if abs(numerics.initial_loss / numerics.uniform_loss - 1) > INITIAL_LOSS_SHARE:
        yield (
            f"a new model's loss is {numerics.initial_loss:.4g}, and ln({numerics.vocab_size:,}) is "
            f"{numerics.uniform_loss:.4g}"
        )


@rule(
    "NUM003",
    "wrong-direction",
    severity=Severity.FAIL,
    level=Level.GPU,
    needs=("numerics",),
    any_device=True,
)
def wrong_direction(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An encoder that is blind to what follows, or a decoder that is not.

    ## What it does
    Changes the late half of documents and looks at their first token, then the other way round, and compares
    with what the model declares of itself: a bidirectional model must hear both, a causal one only the past.

    ## Why is this bad?
    A causal mask in an encoder halves what every token may know; a missing one in a decoder lets it copy its
    targets. Both train without an error.

    ## Example
    ```text
    is_causal=True, left over in a call of the attention kernel
    ```

    ## Use instead
    ```text
    attention as the model declares it
    ```
    """
    yield from _judge(plan, facts, ("direction",)).conclude(OTHER_BACKEND)


@rule(
    "NUM004",
    "step-not-repeatable",
    severity=Severity.WARN,
    level=Level.GPU,
    needs=("numerics",),
    any_device=True,
)
def step_not_repeatable(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Two identical steps that differ.

    ## What it does
    Warns where the same step twice has another loss, or other gradients; those that moved are named. Of the
    attention kernels, triton_packed and flex repeat to the last bit, and with them a step on the kernels
    triton and fused, eager or compiled. FlashAttention, torch's varlen kernel and SDPA on a GPU add up the
    gradient of the queries by atomics, which moves that and what follows from it by up to half a percent of
    the largest entry: for them only the loss has to repeat. A compiled encoder of padded rows is not probed;
    there torch.compile adds up the gradient of the embedding by atomics.

    ## Why is this bad?
    A run that does not repeat cannot be compared bit by bit after a resume, and hides a failing device.

    ## Example
    ```text
    triton_packed, whose gradients are sums in a fixed order, gives two results
    ```

    ## Use instead
    ```text
    look for memory that is read before it is written, then for a failing device (GPU007)
    for runs to compare bit by bit: model.kernel_backend triton or fused, and rows of 2,048 tokens at most
    ```
    """
    yield from _judge(plan, facts, ("repeats",)).conclude(
        "what moved has to repeat here, see the rule's page; run it again, and look at GPU007"
    )

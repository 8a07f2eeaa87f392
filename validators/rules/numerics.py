"""Numerics rules: numerics of a training step, as measured by the probes and their planted faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from math import log
from typing import TYPE_CHECKING

from neobert.families.table import initial_weights, model_family
from neobert.plan import Plan
from neobert.plurals import counted
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.known_answers import attention_specific_kinds, violations_for_wrong_answers
from validators.numerics_faults import FAULTS, is_fault_detected
from validators.rehearsal_parts import require_measured, require_rehearsal
from validators.rule import CannotTellError, Violations, rehearsal_rule, require_group, rule

if TYPE_CHECKING:
    from neobert.config.schema import RunConfig
    from neobert.runfiles.answer_kinds import AnswerKind
    from neobert.tasks.spec import TaskSpec
    from validators.facts_numerics import NumericsFacts, PathFacts, ProbeFacts, ProbeName
    from validators.facts_rehearsal import LearningFacts, OverfitFacts

INITIAL_LOSS_SHARE = 0.15
OTHER_BACKEND = "set model.attn_backend or model.kernel_backend to a path that passes"
OF_A_COMPILED_PATH: tuple[ProbeName, ...] = ("isolation", "parity", "repeats")

UNUSED = "use these weights in the loss, or build the model without a head (auto_class AutoModel)"
MIN_FALL = 0.02
LABELS_LOSS = 1.0
"""Maximum distance in nats between the initial loss of a classification and ln(classes)."""

STABLER = "lower optimizer.lr, or raise scheduler.warmup_steps"
CHECK_THE_MASKS = "check the initial weights, and how datacollator masks the targets"
CHECK_THE_LABELS = "check the initial weights, and the labels"


def _why_not_repeated(run: ResolvedRun, plan: Plan) -> str:
    family = model_family(run.config)
    return "" if family.has_numerics_probes else f"steps of type {family.name} are not repeated"


@dataclass(slots=True)
class _ProbeVerdict:
    """Faults of all paths, and reasons for which the result of a path is unknown."""

    faults: list[str] = field(default_factory=list)
    unknowns: list[str] = field(default_factory=list)

    def conclude(self, run: ResolvedRun, hint: str = "") -> Violations:
        """Yield a violation per fault. Raises CannotTellError if there are only unknowns."""
        family = model_family(run.config)
        hint = hint or family.kernel_hint or OTHER_BACKEND
        yield from (Violation(family.kernel_key, fault, hint) for fault in self.faults)
        if self.unknowns and not self.faults:
            raise CannotTellError("; ".join(self.unknowns))


def _judge_probes(
    plan: Plan, facts: Facts, names: tuple[ProbeName, ...], kinds: tuple[AnswerKind, ...] = ()
) -> _ProbeVerdict:
    """Return the faults of the named probes of each path, or of these known answers if there are no paths."""
    judged, numerics = _ProbeVerdict(), require_group(facts.numerics)
    paths = numerics.paths
    if numerics.attention:
        answers = [answer for answer in numerics.answers if answer.kind in kinds]
        judged.faults += [
            f"{numerics.attention}, {each.message}" for each in violations_for_wrong_answers(answers)
        ]
        absent = {*kinds} - {answer.kind for answer in answers}
        judged.unknowns += [f"{numerics.attention}: {kind} was not tested" for kind in sorted(absent)]
        return judged
    for path in paths:
        if path.error:
            judged.unknowns.append(f"the probes of {path.label} stopped: {path.error}")
        for name in _expected_probes(path, names, has_rotation=plan.shape.positions == "rotary"):
            judged.faults += [f"{path.label}: {fault}" for fault in FAULTS[name](path, path.probes)]
            judged.faults += _undetected_faults(path, name)
            judged.unknowns += [] if path.error else _unknown_results(path, name)
    if not paths:
        judged.unknowns.append("no path was probed")
    return judged


def _expected_probes(
    path: PathFacts, names: tuple[ProbeName, ...], *, has_rotation: bool
) -> Iterator[ProbeName]:
    for name in names:
        if path.is_compiled and name not in OF_A_COMPILED_PATH:
            continue
        if name != "rotation" or has_rotation:
            yield name


def _undetected_faults(path: PathFacts, name: ProbeName) -> Iterator[str]:
    for mutant in path.mutants:
        if mutant.probe == name and not _is_unstable(mutant.probes) and not is_fault_detected(path, mutant):
            yield f"{path.label}: the probe missed a planted fault ({mutant.name}), so it is unreliable"


def _unknown_results(path: PathFacts, name: ProbeName) -> Iterator[str]:
    if getattr(path.probes, name) is None:
        yield f"{path.label}: {name} was not measured"
    elif name in ("isolation", "padding") and _is_unstable(path.probes):
        yield f"{path.label}: two identical passes differ, so a leak cannot be distinguished from noise"
    elif not path.is_compiled and not any(mutant.probe == name for mutant in path.mutants):
        yield f"{path.label}: no fault was planted for {name}"


def _is_unstable(probes: ProbeFacts) -> bool:
    isolations = (probes.isolation, probes.padding)
    return any(isolation is not None and isolation.unstable > 0 for isolation in isolations)


numerics_rule = partial(rule, level=Level.GPU, needs=("numerics",), any_device=True)


@numerics_rule("NUM001", "leak-between-segments", severity=Severity.FAIL)
def leak_between_segments(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Attention that leaks between documents, or from padding.

    ## What it does
    Fails if perturbing one segment of a packed microbatch changes any bit of another, if a gradient
    crosses segments, if padding has an influence, if another attention kernel ran than was resolved, and if a
    probe misses a fault that was planted for it. The check is unknown for a kernel that is not repeatable.

    ## Why is this bad?
    The loss of such a run falls, but its model is worse. No tolerance can detect one leaked key, because the
    rounding error of a correct kernel is as large.

    ## Example
    ```text
    a packed batch with an all-ones attention_mask: every document attends to every other
    ```

    ## Use instead
    ```text
    a backend that passes `neobert-launch validate-gpu --full`
    ```
    """
    judged = _judge_probes(plan, facts, ("isolation", "padding"), ("isolation",))
    for path in require_group(facts.numerics).paths:
        if (path.dispatched or not path.error) and path.dispatched != path.attention:
            ran = path.dispatched or "an unreported kernel"
            judged.faults.append(f"{path.label}: {path.attention} was resolved, but {ran} ran")
    yield from judged.conclude(run)


@numerics_rule("NUM002", "packed-differs-from-alone", severity=Severity.FAIL)
def packed_differs_from_alone(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A packed step that differs from a step on its documents one by one.

    ## What it does
    Compares logits and gradients with fp64 formulas, document by document. Fails if the largest or the
    mean error is more than twice the error of the same formulas in the run's precision, if positions do not
    restart in each document, if rotations are less accurate than in fp32, if a step on the longest
    document is not finite, or if a new model's loss is more than 15 % from ln(vocabulary).

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
    of_model = attention_specific_kinds(plan.shape.attention)
    judged = _judge_probes(plan, facts, ("parity", "rotation"), ("equality", "positions", *of_model))
    judged.faults += _model_faults(require_group(facts.numerics))
    yield from judged.conclude(run)


def _model_faults(numerics: NumericsFacts) -> Iterator[str]:
    for path in numerics.paths:
        if path.is_long_finite is False:
            yield f"{path.label}: a step on one document of {path.long_length:,} tokens is not finite"
    if abs(numerics.initial_loss / numerics.uniform_loss - 1) > INITIAL_LOSS_SHARE:
        yield (
            f"a new model's loss is {numerics.initial_loss:.4g}, but ln({numerics.vocab_size:,}) is "
            f"{numerics.uniform_loss:.4g} (within {INITIAL_LOSS_SHARE:.0%})"
        )


@numerics_rule("NUM003", "wrong-direction", severity=Severity.FAIL)
def wrong_direction(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An encoder that does not attend to later tokens, or a decoder that does.

    ## What it does
    Changes the second half of documents and compares the output at their first token, then vice versa. The
    result must match the model's declaration: a bidirectional model attends to both sides, a causal one only
    to earlier tokens.

    ## Why is this bad?
    A causal mask in an encoder halves the context of every token; a missing one in a decoder lets it copy its
    targets. Both train without an error.

    ## Example
    ```text
    is_causal=True in a call of an encoder's attention kernel
    ```

    ## Use instead
    ```text
    attention in the direction that the model declares
    ```
    """
    direction = plan.shape.attention.direction
    yield from _judge_probes(plan, facts, ("direction",), (direction,)).conclude(run)


@numerics_rule("NUM004", "step-not-repeatable", severity=Severity.WARN, inapplicable=_why_not_repeated)
def step_not_repeatable(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Two identical steps with different results.

    ## What it does
    Warns if repeating a step changes its loss or its gradients, and names the gradients. Of the
    attention kernels, triton_packed and flex are bit-exact, and so are steps with the triton
    and fused kernels, eager or compiled. FlashAttention, torch's varlen kernel and SDPA on a GPU sum the
    gradient of the queries with atomics, which changes it and everything derived from it by up to 0.5 % of
    the largest entry: for them only the loss must repeat. A compiled encoder of padded rows is not probed,
    because torch.compile sums the gradient of its embedding with atomics.

    ## Why is this bad?
    A run that is not repeatable cannot be compared bit by bit after a resume, and hides a failing device.

    ## Example
    ```text
    triton_packed sums gradients in a fixed order, but gives two results
    ```

    ## Use instead
    ```text
    look for memory that is read before it is written, then for a failing device (GPU007)
    for bit-exact comparisons: model.kernel_backend triton or fused, and rows of at most 2,048 tokens
    ```
    """
    yield from _judge_probes(plan, facts, ("repeats",)).conclude(
        run, "see `neobert-launch rule NUM004`, then check the device with GPU007"
    )


@rehearsal_rule("NUM005", "does-not-learn", severity=Severity.FAIL)
def _does_not_learn(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A new model with an implausible initial loss, or one that cannot overfit a single batch.

    ## What it does
    Compares the loss of the first step with ln(vocabulary), within 15 %, for a classification with
    ln(classes), within 1, unless the run starts from pretrained weights or has a loss of its own
    (`plugins.loss`); then trains ten steps on one microbatch at the peak rate, and requires that its loss
    falls by 2 %. Fails if the first or last loss is not finite, and if the run stops itself because of a
    non-finite loss, a loss spike (`guard.loss_spike_factor`), or weights that get no gradient in step 1
    (TRN003).

    ## Why is this bad?
    An initial loss far below ln(vocabulary) means that targets leak into the input; far above it, that the
    initial weights are wrong. If a model cannot fit one batch, its gradient does not arrive, or the learning
    rate is wrong by orders of magnitude.

    ## Example
    ```text
    optimizer.lr: 6e-10
    ```

    ## Use instead
    ```text
    optimizer.lr: 6e-4
    ```
    """
    if untrained := require_rehearsal(facts).untrained:
        yield Violation("task", f"the rehearsal stopped: {untrained}", UNUSED)
        return
    if reason := require_rehearsal(facts).diverged:
        yield Violation("optimizer.lr", f"the rehearsal diverged: {reason}", STABLER)
        return
    learning = require_measured(require_rehearsal(facts).learning, facts, "the loss")
    initial, uniform = learning.initial_loss, log(learning.vocab_size)
    task = spec_of(run.config)
    check = CHECK_THE_MASKS if task.predicts == "masked" else CHECK_THE_LABELS
    if initial is None:
        yield Violation("model", "the initial loss is not finite", check)
    elif _starts_uniform(run.config, learning) and abs(initial - uniform) > (
        allowed := _initial_loss_tolerance(task, uniform)
    ):
        message = (
            f"the initial loss is {initial:.4g}, but ln({learning.vocab_size:,}) is {uniform:.4g} "
            f"(within {allowed:.2g})"
        )
        yield Violation("model", message, check)
    yield from _overfit_violations(learning.overfit, task)


def _starts_uniform(config: RunConfig, learning: LearningFacts) -> bool:
    """Return whether the first loss is about ln(classes): new weights, cross-entropy and not of scores."""
    return initial_weights(config) is None and config.plugins.loss is None and learning.vocab_size > 1


def _initial_loss_tolerance(task: TaskSpec, uniform: float) -> float:
    """Return the allowed distance in nats between the initial loss and the loss of equal logits.

    transformers draws the weights of some heads so that logits have unit scale. In a new model they are
    nearly the same for every text, which moves the loss of a few classes by up to about 1 either way.
    """
    share = INITIAL_LOSS_SHARE * uniform
    return share if task.is_self_supervised else max(share, LABELS_LOSS)


def _overfit_violations(overfit: OverfitFacts, task: TaskSpec) -> Violations:
    first, last = overfit.first, overfit.last
    not_finite = "the loss of one batch is not finite before the first update"
    if first is None and task.predicts != "masked":
        yield Violation("model", not_finite, CHECK_THE_LABELS)
    elif first is None:
        yield Violation(
            "datacollator.mlm_probability",
            not_finite,
            "raise datacollator.mlm_probability so that each batch has targets, or check the initial weights",
        )
    elif last is None or not last < first * (1 - MIN_FALL):
        yield Violation(
            "optimizer.lr",
            f"{counted(overfit.steps, 'step')} on one batch changed its loss from {first:.4g} to "
            f"{'not finite' if last is None else f'{last:.4g}'} (a fall of {MIN_FALL:.0%} needed)",
            "check optimizer.lr, trainer.gradient_clipping and the optimizer's parameter groups",
        )

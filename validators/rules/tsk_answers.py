"""Task rules: tests of the trained task with known answers."""

from __future__ import annotations

from collections.abc import Callable
from operator import ge, le
from typing import NamedTuple

from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import NEEDS, cut_short, rehearsal_of
from validators.rule import CannotTellError, Violations, rule


class Limit(NamedTuple):
    """Limit of one kind of test: comparison, value, and message and hint of the finding."""

    holds: Callable[[float, float], bool]
    value: float
    problem: str
    hint: str


OTHER_KERNELS = "set model.attn_backend to sdpa and model.kernel_backend to torch, and report this as a bug"
LIMITS = {
    "different": Limit(
        ge,
        1e-6,
        "changing {} changes the loss by a relative {:.2g} (at least {:.2g})",
        "check the attention mask: every token of a text has to attend to the whole text",
    ),
    "same": Limit(
        le,
        0.01,
        "changing {} changes the loss of a text by {:.2g} of the effect of its own tokens (at most {:.2g})",
        OTHER_KERNELS,
    ),
    "close": Limit(
        le, 0.05, "the logits of {} have a relative difference of {:.2g} (at most {:.2g})", OTHER_KERNELS
    ),
    "learned": Limit(
        ge,
        0.02,
        "after ten steps on {}, correct labels of new texts have a loss {:.2g} below that of wrong labels "
        "(relative; at least {:.2g})",
        "raise optimizer.lr; if this does not help, report a bug: labels are assigned to wrong texts",
    ),
}
"""Rounding in bf16 is a tenth of each upper limit. One token of another text is more than that of `same`."""


@rule("TSK006", "known-answer-missed", severity=Severity.FAIL, level=Level.REHEARSAL, needs=NEEDS)
def known_answer_missed(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A trained task that fails a test with a known answer.

    ## What it does
    At the end of the rehearsal, the task changes a microbatch and compares the loss of the training step:
    other tokens of the same text must change it, tokens of other texts and of padding must not. A classifier
    must also give packed texts the logits of padded rows, and learn a planted label in ten steps: the token
    that decides the label of a text must decide it in new texts.

    ## Why is this bad?
    A leak between packed texts, or labels that belong to other texts, does not stop the loss from falling. It
    shows as a worse model at the end.

    ## Example
    ```text
    the labels of a packed microbatch in another order than its texts
    ```

    ## Use instead
    ```text
    one label per text, in the order of cu_seqlens
    ```
    """
    answers = rehearsal_of(facts).answers
    if not answers and (reason := cut_short(facts)):
        raise CannotTellError(reason)
    for answer in answers:
        limit = LIMITS[answer.kind]
        if answer.value is None:
            message = f"the loss is not finite in the known-answer test of {answer.subject}"
            yield Violation("task", message, "lower optimizer.lr, or raise scheduler.warmup_steps")
        elif not limit.holds(answer.value, limit.value):
            message = limit.problem.format(answer.subject, answer.value, limit.value)
            yield Violation("task", message, limit.hint)

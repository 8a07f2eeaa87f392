"""Known-answer tests: limit of each kind, and the kinds that are required for a run."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from operator import ge, le
from typing import TYPE_CHECKING, NamedTuple

from validators.finding import Violation

if TYPE_CHECKING:
    from neobert.families.attention import AttentionSpec
    from neobert.runfiles.answer_kinds import AnswerKind
    from neobert.tasks.spec import TaskSpec
    from validators.facts_rehearsal import AnswerFacts
    from validators.rule import Violations


class Limit(NamedTuple):
    """Limit for one kind of test: `holds(measured, value)`, and the finding's message and hint."""

    holds: Callable[[float, float], bool]
    value: float
    problem: str
    hint: str

    def is_missed(self, answer: AnswerFacts) -> bool:
        """Return whether an answer violates the limit or is not finite."""
        return answer.value is None or not self.holds(answer.value, self.value)


BOUNDS = (
    "pass the document boundaries (cu_seqlens) to the attention, or set datacollator.pack_sequences to false"
)
LIMITS = {
    "isolation": Limit(
        le,
        0.0,
        "isolation: changing {} changes the hidden states of a document, by {:.2g} of the effect of its own "
        "tokens (must be {:g})",
        BOUNDS,
    ),
    "bidirectional": Limit(
        ge,
        1.0,
        "direction: changing {} changes earlier hidden states in {:.0%} of the documents of a bidirectional "
        "model (must be {:.0%})",
        "remove the causal mask from the attention, or declare the model causal",
    ),
    "causal": Limit(
        le,
        0.0,
        "direction: changing {} changes earlier hidden states of a causal model, by {:.2g} of the effect "
        "on the changed tokens (must be {:g})",
        "pass a causal mask to the attention",
    ),
    "equality": Limit(
        le,
        2.0,
        "equality: the hidden states of packed {} differ from the same documents alone by {:.3g} "
        "times the rounding error (at most {:g})",
        "compare document boundaries, windows, softmax scale and order of the key heads in the model with "
        "its AttentionSpec",
    ),
    "positions": Limit(
        le,
        0,
        "positions: in the {}, {} tokens have position ids that are not counted from the start of their "
        "document (must be {:g})",
        "pass position_ids that restart in each document",
    ),
    "different": Limit(
        ge,
        1e-6,
        "changing {} changes the loss by a relative {:.2g} (at least {:.2g})",
        "check the attention mask and the labels: a text's loss has to depend on its own tokens",
    ),
    "same": Limit(
        le,
        0.01,
        "isolation of the loss: changing {} changes the loss of a text by {:.2g} of the effect of its own "
        "tokens (at most {:.2g})",
        BOUNDS,
    ),
    "shift": Limit(
        ge,
        1e-6,
        "shift: changing {} changes its loss by a relative {:.2g} (at least {:.2g})",
        "remove the shift of the loss: the target rule shifts the labels",
    ),
    # 1 of a correct rule, less the inputs that a task replaces. Without a shift and with two it is 0: only
    # positions count at which three tokens in a row differ. Labels of other documents are right as often
    # as two tokens of a text are equal, less than one in ten.
    "next": Limit(
        ge,
        0.5,
        "shift: {} have the next token of their document as label in {:.0%} of the cases (at least {:.0%})",
        "shift the labels once, in the target rule: labels[t] = input_ids[t + 1]",
    ),
    # A token of the next document is the label of all last tokens, or by chance of one in ten.
    "end": Limit(
        ge,
        0.5,
        "shift: {} have a label that is not a token of the next document in {:.0%} of the cases (at least "
        "{:.0%})",
        "set the label of the last token of each document to -100",
    ),
    "learned": Limit(
        ge,
        0.02,
        "after ten steps on {}, correct labels of new texts have a loss {:.2g} below the loss of wrong "
        "labels (relative; at least {:.2g})",
        "raise optimizer.lr; if this does not help, report a bug: labels are assigned to wrong texts",
    ),
    "exact": Limit(
        le,
        0,
        "native sparse attention: {}: {:g} values are wrong (must be {:g})",
        "report a bug with the versions of torch, flash-linear-attention and triton",
    ),
    "close": Limit(
        le,
        2.0,
        "native sparse attention: {}: the error is {:.3g} times the rounding error (at most {:g})",
        "report a bug with the versions of torch, flash-linear-attention and triton",
    ),
}
"""Limit by kind of test. bf16 rounding reaches a tenth of the limit of `same`; a leaked token exceeds it."""

OF_EVERY_TASK = ("isolation", "equality", "positions", "different", "same")


def violations_for_wrong_answers(answers: Iterable[AnswerFacts]) -> Violations:
    """Yield a violation for each wrong answer."""
    for answer in answers:
        limit = LIMITS[answer.kind]
        if answer.value is None:
            message = (
                f"the loss or a hidden state is not finite in the {answer.kind} test of {answer.subject}"
            )
            yield Violation("task", message, "lower optimizer.lr, or raise scheduler.warmup_steps")
        elif limit.is_missed(answer):
            yield Violation(
                "task", limit.problem.format(answer.subject, answer.value, limit.value), limit.hint
            )


def unmeasured_kinds(answers: Iterable[AnswerFacts], attention: AttentionSpec, task: TaskSpec) -> list[str]:
    """Return the kinds of tests that this attention and task require but that were not measured."""
    measured = {answer.kind for answer in answers}
    return [kind for kind in _required_kinds(attention, task) if kind not in measured]


def attention_specific_kinds(attention: AttentionSpec) -> tuple[AnswerKind, ...]:
    """Return the kinds of tests for native sparse attention, or none for other attention."""
    return () if attention.selected is None else ("exact", "close")


def _required_kinds(attention: AttentionSpec, task: TaskSpec) -> Iterator[str]:
    yield from (*OF_EVERY_TASK, attention.direction, *attention_specific_kinds(attention))
    if attention.is_causal and task.labels_tokens:
        yield "shift"
    if attention.is_causal and task.is_self_supervised:
        yield "next"

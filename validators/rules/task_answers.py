"""Task rules: tests of the trained task with known answers."""

from __future__ import annotations

from neobert.plan import Plan
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity
from validators.known_answers import missed, unmeasured
from validators.rehearsal_parts import cut_short, rehearsal_of
from validators.rule import CannotTellError, Violations, rehearsal_rule


@rehearsal_rule("TSK006", "known-answer-missed", severity=Severity.FAIL)
def known_answer_missed(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A trained task that fails a test with a known answer.

    ## What it does
    At the end of the rehearsal, every task is tested against the attention that its model declares
    (bidirectional or causal, windows, heads, scale):

    - isolation: tokens of other documents and of padding change no hidden state of a document;
    - direction: later tokens reach earlier ones in an encoder, and none in a causal model;
    - equality: a packed row has the hidden states of plain attention over each document alone;
    - positions: the position ids that the model receives count from 0 in each document.

    The operator of native sparse attention is compared with its definition, token by token: selected blocks,
    outputs, gradients, and what later tokens and other documents change.

    The loss of the training step must depend on a text's own tokens, and not on those of other texts and of
    padding; in a causal model a target must depend on the token at its own position, and its label must be
    the next token of the text. A classifier also has to learn a planted label in ten steps. A test that was
    not carried out is unknown.

    ## Why is this bad?
    A leak between packed texts, or labels that belong to other texts, does not stop the loss from falling. It
    shows as a worse model at the end.

    ## Example
    ```text
    a causal task whose packed documents attend to each other
    ```

    ## Use instead
    ```text
    the bounds of the documents (cu_seqlens) passed to the attention, and position ids that restart
    ```
    """
    answers = rehearsal_of(facts).answers
    violations = list(missed(answers))
    yield from violations
    absent = unmeasured(answers, plan.shape.attention, spec_of(run.config))
    if absent and not violations:
        raise CannotTellError(cut_short(facts) or f"not tested: {', '.join(absent)}")

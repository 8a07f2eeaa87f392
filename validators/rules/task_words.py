"""Task rules: labels of words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from neobert.plan import Plan
from neobert.plurals import listed
from neobert.tasks.token_classification.spec import OUTSIDE, is_entity_tag
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.data_prepared import prepared_of
from validators.tasks import of_words

NAMES = "token_classification.label_names"


@rule("TSK007", "contradictory-word-labels", severity=Severity.FAIL, level=Level.STATIC, tasks=of_words)
def contradictory_word_labels(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Labels of words that cannot be trained or scored.

    ## What it does
    Requires at least two names in `token_classification.label_names`, each once. Either all but `O` mark
    entities (`B-`, `I-`, `E-` or `S-` and a type), or none does. Rejects streaming of labelled words.

    ## Why is this bad?
    The head would have no outputs, or two for one label. Next to a name such as `PER`, the tag `B-PER` cannot
    be counted as the begin of an entity, so the run would report no F1.

    ## Example
    ```yaml
    token_classification:
      label_names: [O, B-PER, PER]
    ```

    ## Use instead
    ```yaml
    token_classification:
      label_names: [O, B-PER, I-PER]
    ```
    """
    names = run.config.token_classification.label_names
    repeated = [name for name, count in Counter(names).items() if count > 1]
    marks = [name for name in names if is_entity_tag(name)]
    plain = [name for name in names if name != OUTSIDE and not is_entity_tag(name)]
    if len(names) < 2:
        message = f"label_names has {len(names)} names (at least 2)"
        yield Violation(NAMES, message, f"set {NAMES} to all labels of the data, such as [O, B-PER, I-PER]")
    elif repeated:
        message = f"label_names has {listed(repeated)} more than once"
        yield Violation(NAMES, message, f"list each name once in {NAMES}")
    elif marks and plain:
        message = f"label_names mixes entity tags ({listed(marks)}) and other labels ({listed(plain)})"
        yield Violation(
            NAMES, message, f"add a prefix B-, I-, E- or S- to each name except {OUTSIDE} in {NAMES}"
        )
    if run.config.dataset.streaming:
        message = f"task {run.config.task} reads prepared data, but dataset.streaming is true"
        yield Violation("dataset.streaming", message, "set dataset.streaming to false")


@rule(
    "DAT024",
    "word-labels-lost",
    severity=Severity.WARN,
    level=Level.DATA,
    needs=("inspection",),
    tasks=of_words,
)
def word_labels_lost(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Labelled words that are neither trained on nor scored.

    ## What it does
    Counts the words of the prepared data without a token, and those that truncation or dropping cuts off.

    ## Why is this bad?
    A word without a token has no prediction: zero-width characters and control characters vanish in most
    tokenizers. Entities that are cut off are missing from the evaluation, so its F1 ignores them.

    ## Example
    ```yaml
    dataset:
      max_seq_length: 32
      long_documents: truncate
    ```

    ## Use instead
    ```yaml
    dataset:
      max_seq_length: 32
      long_documents: split       # between words; every word keeps its label
    ```
    """
    prepared = prepared_of(facts)
    for split, words in (("training", prepared.words), ("evaluation", prepared.eval_words)):
        if words:
            yield from _lost(run, split, words)


def _lost(run: ResolvedRun, split: str, words: Mapping[str, int]) -> Violations:
    total, without_token, cut = words["total"], words["without_token"], words["cut"]
    if without_token:
        yield Violation(
            "tokenizer",
            f"{without_token:,} of {total:,} {split} words have no token, so their labels are not used",
            "remove words without visible characters from the data",
        )
    is_cut, longer = run.config.dataset.long_documents != "split", "raise dataset.max_seq_length"
    if cut:
        yield Violation(
            "dataset.long_documents",
            f"{cut:,} of {total:,} {split} words are cut off, so their labels are not used",
            f"set dataset.long_documents to split, or {longer}" if is_cut else longer,
        )

"""Data rules: evaluation text, its overlap with the training text, mixtures of corpora, and epochs."""

from __future__ import annotations

import os.path
from collections import Counter

from neobert.config.corpora import corpus_paths, list_corpora
from neobert.config.schema import DatasetConfig
from neobert.plan import Plan
from neobert.plurals import counted, percent
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import require_measured, require_rehearsal
from validators.remaining import MAX_EPOCHS, limiting_key, remaining_epochs, remaining_in_run
from validators.rule import CannotTellError, Violations, data_rule, rehearsal_rule, rule
from validators.rules.data_prepared import reason_for_smoke_run, require_prepared
from validators.tasks import predicts_text_tokens

MAX_HELD_OUT = 0.5
MAX_SHARED = 0.05
"""Maximum share of evaluation tokens in training documents; web text repeats licences and boilerplate."""

HARMLESS_EPOCHS, SAME_TOKENS_EPOCHS, EPOCH_LIMIT = 4.0, 8.0, 40.0
"""Passes that are worth nearly as much as new text; twice as many, for a decoder, which gets the same tokens
in each; and the passes of an encoder, which gets new masks in each."""


@rehearsal_rule("DAT006", "evaluation-not-held-out", severity=Severity.FAIL)
def evaluation_not_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An evaluation on training data, or one that fails for the first time hours into the run.

    ## What it does
    Evaluates once before step 1, and compares the evaluation documents with the training text verbatim: up to
    200,000 of each, spread over a large corpus, or the first window of a stream. Fails if more than 5 % of
    the evaluation's tokens are in documents that are also trained on.

    ## Why is this bad?
    A loss on training text falls towards zero and does not measure generalization. An evaluation that first
    runs at step 1,000 stops the run there if it fails.

    ## Example
    ```yaml
    dataset:
      train_split: train[:90%]
      eval_split: train[85%:]
    ```

    ## Use instead
    ```yaml
    dataset:
      train_split: train[:90%]
      eval_split: train[90%:]
    ```
    """
    rehearsal = require_rehearsal(facts)
    evaluation = require_measured(rehearsal.evaluation, facts, "the evaluation")
    if not evaluation.is_configured:
        return
    if not evaluation.was_announced or evaluation.loss is None:
        message = "the evaluation before step 1 was not announced, or produced no loss"
        yield Violation(
            "dataset",
            message,
            "raise dataset.validation_split, or set dataset.eval_split to a split with more text",
        )
    overlap = require_measured(rehearsal.overlap, facts, "the overlap of training and evaluation text")
    if overlap.shared_share > MAX_SHARED:
        yield Violation(
            "dataset",
            f"{percent(overlap.shared_share)} of the evaluation's tokens also occur in training documents "
            f"(limit {MAX_SHARED:.0%}; {overlap.eval_documents:,} documents compared with "
            f"{overlap.train_documents:,})",
            "set dataset.validation_split, or dataset.eval_split to a separate split",
        )


@rule("DAT026", "evaluation-split-of-training", severity=Severity.FAIL, level=Level.STATIC)
def evaluation_split_of_training(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Text held out for evaluation that is part of the training split, or more than is left for training.

    ## What it does
    Compares `dataset.train_split` with `dataset.eval_split`: fails if they are the same, or if one is a slice
    of the other. Two slices of one split are not compared here; the rehearsal compares their text (DAT006).
    Warns if `dataset.validation_split` is above 0.5 and decides what is held out: `dataset.eval_split` and
    `dataset.eval_samples` take precedence.

    ## Why is this bad?
    The evaluation loss is then a training loss: it falls while the model memorizes, and selects the
    checkpoint that has memorized most. `dataset.validation_split` is the share for evaluation: with 0.9, a
    run trains on a tenth of its text, and every evaluation reads nine times as much.

    ## Example
    ```yaml
    dataset:
      train_split: train
      eval_split: train[:1%]
    ```

    ## Use instead
    ```yaml
    dataset:
      train_split: train
      validation_split: 0.01
    ```
    """
    for corpus in list_corpora(run.config.dataset):
        train, evaluation = corpus.train_split, corpus.eval_split
        if evaluation is None:
            continue
        is_same_split = train.partition("[")[0] == evaluation.partition("[")[0]
        if evaluation == train or (is_same_split and not ("[" in train and "[" in evaluation)):
            message = f"dataset.eval_split {evaluation} is also trained on: dataset.train_split is {train}"
            hint = "set dataset.validation_split instead of dataset.eval_split, or name a separate split"
            yield Violation("dataset.eval_split", message, hint)
    dataset, path = run.config.dataset, "dataset.validation_split"
    share = dataset.validation_split
    is_used = dataset.eval_split is None and dataset.eval_samples is None
    if is_used and share is not None and share > MAX_HELD_OUT:
        message = f"{path} {share:g} holds out more text than it leaves for training"
        hint = f"set {path} to {1 - share:.2g} if the share for training was meant"
        yield Violation(path, message, hint, Severity.WARN)


@data_rule("DAT017", "nothing-held-out", severity=Severity.WARN)
def nothing_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that is never evaluated, because no text is held out.

    ## What it does
    Warns if the prepared data has no evaluation split and none of it is held out: `trainer.eval_steps` then
    has no effect. With `trainer.metric_for_best_model` such data is rejected during preparation.

    ## Why is this bad?
    The training loss alone cannot distinguish learning from memorization, and later it is unknown which
    checkpoint was good.

    ## Example
    ```yaml
    dataset:
      path: corpus.jsonl
    ```

    ## Use instead
    ```yaml
    dataset:
      path: corpus.jsonl
      validation_split: 0.01
    ```
    """
    if require_prepared(facts).num_eval_tokens is None:
        message = "the run is not evaluated: the data has no evaluation split, and none of it is held out"
        yield Violation("dataset", message, "set dataset.validation_split, e.g. to 0.01")


def _why_no_mixture(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.dataset.mixture else "dataset.mixture is empty"


@rule(
    "DAT018",
    "undrawable-mixture",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=_why_no_mixture,
    waivable=False,
)
def undrawable_mixture(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A mixture that is streamed, or that names one text twice.

    ## What it does
    Fails if `dataset.mixture` and `dataset.streaming` are both set, if a corpus has both a path and a name or
    neither, and if two corpora are the same split of the same text.

    ## Why is this bad?
    A mixture is prepared first: how often a corpus is read again follows from its length, which a stream
    does not have. A text that is named twice gets the sum of both weights, which reads like a mistake.

    ## Example
    ```yaml
    dataset:
      mixture:
        - {path: data/books, weight: 3}
        - {path: data/books, weight: 1}
    ```

    ## Use instead
    ```yaml
    dataset:
      mixture:
        - {path: data/books, weight: 3}
        - {path: data/web, weight: 1}
    ```
    """
    dataset = run.config.dataset
    if dataset.streaming:
        message = "dataset.mixture and dataset.streaming are both set: a mixture is prepared, not streamed"
        yield Violation("dataset.streaming", message, "set dataset.streaming to false")
    corpora = list_corpora(dataset)
    for number, corpus in enumerate(corpora):
        if (corpus.path is None) == (corpus.name is None):
            how = "no path and no name" if corpus.path is None else "a path and a name"
            place = f"dataset.mixture[{number}]"
            yield Violation("dataset.mixture", f"{place} has {how}", f"set a path or a name in {place}")
    for text, count in Counter(map(_corpus_identity, corpora)).items():
        if count > 1 and any(text[:2]):
            message = f"{text[0] or text[1]} ({text[-1]}) is in dataset.mixture {count} times"
            yield Violation("dataset.mixture", message, "list each text once, with the sum of its weights")


def _corpus_identity(corpus: DatasetConfig) -> tuple[str, ...]:
    """Return the path, name, config and training split, which identify the text of a corpus."""
    path = ", ".join(map(os.path.normpath, corpus_paths(corpus)))
    return path, corpus.name or "", corpus.config or "", corpus.train_split


def _why_epochs_not_counted(run: ResolvedRun, plan: Plan) -> str:
    return (
        "the data is a stream of unknown length"
        if run.config.dataset.streaming
        else reason_for_smoke_run(run, plan)
    )


@data_rule("DAT004", "too-little-text", severity=Severity.FAIL, inapplicable=_why_epochs_not_counted)
def _too_little_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Too little text for the number of steps, so that it is repeated too often.

    ## What it does
    Divides the tokens that the run reads by the tokens of the training text. Fails above 40 epochs, as
    many as BERT had (Devlin et al., arXiv:1810.04805). In a production run, warns above 4 epochs: up to that
    number, repeated text is worth nearly as much as new text (Muennighoff et al., arXiv:2305.16264). Warns
    above 8 for a decoder, which gets the same tokens in each. Warns above 4 epochs of a corpus of a mixture,
    whose loss hides that it is memorized: lower its weight. Smoke runs are exempt.

    ## Why is this bad?
    The remaining steps memorize the text instead of learning the language.

    ## Example
    ```text
    the run reads the data 131.0 times
    ```

    ## Use instead
    ```yaml
    trainer:
      max_steps: 20000
    ```
    """
    epochs = require_prepared(facts).epochs
    if epochs is None:
        raise CannotTellError("the size of the data is unknown")
    warned = HARMLESS_EPOCHS if run.is_production else _max_epochs_allowed(run)
    if epochs > warned:
        yield Violation(
            limiting_key(run, plan),
            f"the run reads the data {epochs:,.1f} times (limit {EPOCH_LIMIT:g}, a warning above {warned:g})",
            _fewer_epochs_hint(run, plan, epochs, 0),
            None if epochs > EPOCH_LIMIT else Severity.WARN,
        )
    for corpus in require_prepared(facts).corpora if run.config.dataset.mixture else ():
        if corpus.epochs > HARMLESS_EPOCHS:
            share = f"{percent(corpus.share)} of the tokens are drawn from {corpus.tokens:,}"
            yield Violation(
                "dataset.mixture",
                f"{corpus.label} is read {corpus.epochs:,.1f} times (limit {HARMLESS_EPOCHS:g}): {share}",
                "lower the weight of this corpus, add text to this corpus, or lower trainer.max_steps",
                Severity.WARN,
            )


def _max_epochs_allowed(run: ResolvedRun) -> float:
    """Return the number of epochs above which a text is memorized, fewer for decoders than for encoders."""
    spec = spec_of(run.config)
    return SAME_TOKENS_EPOCHS if predicts_text_tokens(spec) and spec.predicts == "next" else EPOCH_LIMIT


def _why_epochs_not_estimated(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why epochs are not estimated from file sizes, or an empty string."""
    if run.config.dataset.mixture:
        return "a mixture is checked by DAT004, on the prepared text"
    if plan.epochs.value is None:
        return "the size of the text is not known before the data is prepared"
    return reason_for_smoke_run(run, plan)


@rule(
    "DAT025",
    "text-learned-by-heart",
    tasks=predicts_text_tokens,
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_why_epochs_not_estimated,
)
def _memorized_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that reads a small text many times, by the size of its files.

    ## What it does
    Divides the tokens that the run reads by the tokens in its training files, estimated at 4 bytes per token,
    as in English; steps of a run that is continued on this text do not count (`trainer.continue_from`). Warns
    above 40 passes, and above 8 for a decoder, which gets the same tokens in each: the limits of text that
    was prepared and counted (DAT004), for which this rule has no finding. Compressed files and Parquet files
    are not checked, because their size differs from the size of the text.

    ## Why is this bad?
    The loss of a text that is read a hundred times falls until the model has memorized it, and looks like
    learning. Hours of training are better spent on more text.

    ## Example
    ```yaml
    dataset:
      path: notes.txt     # 60 kB: 15,000 tokens
    trainer:
      max_steps: 20000
    ```

    ## Use instead
    ```yaml
    dataset:
      path: notes.txt
    trainer:
      max_steps: 200
    ```
    """
    part = remaining_in_run(run, plan, facts)
    passes = remaining_epochs(plan, part)
    most = _max_epochs_allowed(run)
    if passes is not None and facts.prepared is None and passes > most:
        yield Violation(
            limiting_key(run, plan),
            f"the run reads the text about {passes:,.0f} times (limit {most:g}): {part.tokens.value:,} "
            f"tokens in {counted(part.steps, 'step')} ({plan.epochs.reason})",
            _fewer_epochs_hint(run, plan, passes, part.first_step),
        )


def _fewer_epochs_hint(run: ResolvedRun, plan: Plan, epochs: float, first_step: int) -> str:
    """Return the hint to add text, or to limit the steps from `first_step` on to `HARMLESS_EPOCHS` epochs."""
    key, value = limiting_key(run, plan), f"{HARMLESS_EPOCHS:g}"
    if key != MAX_EPOCHS:
        steps = (plan.max_steps.value - first_step) * HARMLESS_EPOCHS / epochs
        value = str(first_step + max(1, int(steps)))
    return f"add text, or set {key} to {value}, which reads this text {HARMLESS_EPOCHS:g} times"

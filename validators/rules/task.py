"""Task rules: metrics, early stopping, initial weights, adapters, labels and known answers of a task."""

from __future__ import annotations

from collections.abc import Mapping

from neobert.adapters.spec import target_modules, unknown_targets
from neobert.config.optimizers import OPTIMIZERS
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plurals import listed, percent
from neobert.printable import printable
from neobert.tasks.metric import CORRELATIONS
from neobert.tasks.specs import SPECS, known_metrics, reported_metrics, spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.known_answers import unmeasured_kinds, violations_for_wrong_answers
from validators.rehearsal_parts import early_end_reason, require_rehearsal
from validators.rule import CannotTellError, Violations, data_rule, rehearsal_rule, rule
from validators.rules.data_prepared import require_prepared
from validators.rules.task_labels import task_labels
from validators.tasks import compares_pairs, has_labels, has_labels_or_scores, labels_words, may_train_adapter

BEST_METRIC = "trainer.metric_for_best_model"
FOR_RARE_CLASSES = ("eval/mcc", "eval/f1", "eval/loss")
ONE_SIDED = 0.9

MAX_SCALE = 64
"""Maximum scale alpha / r of an adapter; published adapters have 1 to 16."""


@rule("TSK002", "metric-of-another-task", severity=Severity.FAIL, level=Level.STATIC)
def metric_of_another_task(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A best-checkpoint metric that the run never reports.

    ## What it does
    Compares `trainer.metric_for_best_model` with the metrics of the task: regression reports correlations,
    classification by classes accuracy, F1 and MCC, classification of words precision, recall and F1 where its
    labels mark entities, question answering exact match and F1, and multiple choice accuracy.

    ## Why is this bad?
    No checkpoint would be the best one, and early stopping would never see an improvement.

    ## Example
    ```yaml
    task: pretrain
    trainer:
      metric_for_best_model: eval/mcc
    ```

    ## Use instead
    ```yaml
    task: pretrain
    trainer:
      metric_for_best_model: eval/loss
    ```
    """
    metric = run.config.trainer.metric_for_best_model
    reported = [each.name for each in reported_metrics(run.config)]
    is_plugged = metric not in known_metrics() and bool(run.config.plugins.metrics)  # PLG002 tests them
    if metric is not None and metric not in reported and not is_plugged:
        others = _tasks_with_metric_hint(metric, run.config.task)
        yield Violation(
            "trainer.metric_for_best_model",
            f"metric_for_best_model is {metric}, which this run does not report",
            f"set trainer.metric_for_best_model to one of {', '.join(reported)}{others}",
        )


def _tasks_with_metric_hint(metric: str, task: str) -> str:
    """Return the end of a hint that names other tasks with this metric; empty if there are none."""
    others = [spec for name, spec in SPECS.items() if name != task]
    tasks = [spec.name for spec in others if metric in [each.name for each in spec.metrics]]
    return f"; {metric} is a metric of task {' or '.join(tasks)}" if tasks else ""


@rule("TSK003", "early-stopping-cannot-act", severity=Severity.FAIL, level=Level.STATIC)
def early_stopping_cannot_act(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Early stopping without a metric, or without evaluations during the run.

    ## What it does
    Requires `trainer.metric_for_best_model` and `trainer.eval_steps` where `trainer.early_stopping_patience`
    is set. Warns if the run has too few evaluations for patience to run out before the last step.

    ## Why is this bad?
    The run would train to its last step, although its config requests a stop when it no longer improves.

    ## Example
    ```yaml
    trainer:
      early_stopping_patience: 3
      metric_for_best_model: null
    ```

    ## Use instead
    ```yaml
    trainer:
      early_stopping_patience: 3
      metric_for_best_model: eval/loss
    ```
    """
    trainer = run.config.trainer
    if trainer.early_stopping_patience is None:
        return
    if trainer.metric_for_best_model is None:
        yield Violation(
            "trainer.early_stopping_patience",
            "early_stopping_patience is set, but metric_for_best_model is null",
            "set trainer.metric_for_best_model, or trainer.early_stopping_patience to null",
        )
    if trainer.eval_steps == 0:
        yield Violation(
            "trainer.eval_steps",
            "early_stopping_patience is set, but eval_steps is 0: there is one evaluation, at the end",
            "set trainer.eval_steps, or trainer.early_stopping_patience to null",
        )
        return
    # The first evaluation is the best so far, and patience counts those after it.
    earliest = trainer.eval_steps * (trainer.early_stopping_patience + 1)
    if earliest >= plan.max_steps.value:
        yield Violation(
            "trainer.early_stopping_patience",
            f"early stopping could act at step {earliest:,} at the earliest, but the run has "
            f"{plan.max_steps.value:,} steps",
            "lower trainer.early_stopping_patience or trainer.eval_steps, or set "
            "trainer.early_stopping_patience to null",
            Severity.WARN,
        )


@data_rule("TSK010", "undefined-metric", severity=Severity.FAIL, tasks=has_labels_or_scores)
def undefined_metric(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A best-checkpoint metric that is undefined or uninformative on the evaluation data.

    ## What it does
    Counts the labels of the prepared evaluation data: a Matthews correlation needs texts of two classes, and
    a correlation needs two different scores. Warns about accuracy if a class has 90 % or more of the labels.

    ## Why is this bad?
    No checkpoint would be the best one, and early stopping would have nothing to judge by. A model that
    always predicts the frequent class has the accuracy of its share.

    ## Example
    ```text
    eval_labels: {"1": 500}    # metric_for_best_model: eval/mcc
    ```

    ## Use instead
    ```text
    eval_labels: {"1": 500}    # metric_for_best_model: eval/loss
    ```
    """
    metric, prepared = run.config.trainer.metric_for_best_model, require_prepared(facts)
    classes = [name for name, count in prepared.eval_labels.items() if count]
    scores, is_correlation = prepared.eval_scores, metric in {each.name for each in CORRELATIONS}
    if metric == "eval/accuracy" and classes:
        yield from _accuracy_of_one_class(run, prepared.eval_labels)
        return
    if metric == "eval/mcc" and len(classes) == 1 and len(prepared.labels) != 1:  # else DAT021 fails
        problem = f"all {task_labels(run).unit}s of the evaluation have label {printable(classes[0])}"
    elif is_correlation and compares_pairs(spec_of(run.config)) and not scores:
        problem = "the evaluation has no pairs with scores"
    elif is_correlation and scores and scores["min"] == scores["max"]:
        problem = f"all scores of the evaluation are {scores['min']:g}"
    else:
        return
    yield Violation(
        BEST_METRIC,
        f"metric_for_best_model {metric} is undefined: {problem}",
        f"set {BEST_METRIC} to eval/loss, or evaluate on data with different labels",
    )


def _accuracy_of_one_class(run: ResolvedRun, counts: Mapping[str, int]) -> Violations:
    largest = max(counts, key=lambda label: counts[label])
    share = counts[largest] / sum(counts.values())
    if share >= ONE_SIDED:
        reported = [each.name for each in reported_metrics(run.config)]
        # A Matthews correlation of one class is undefined, and an F1 of one class is uninformative.
        better = next(name for name in FOR_RARE_CLASSES[-1 if share == 1 else 0 :] if name in reported)
        yield Violation(
            BEST_METRIC,
            f"{percent(share)} of the evaluation's {task_labels(run).unit}s have label {printable(largest)}: "
            f"a model that always predicts this label has that accuracy (a warning from {ONE_SIDED:.0%})",
            f"set {BEST_METRIC} to {better}",
            Severity.WARN,
        )


def _reason_for_smoke_run(run: ResolvedRun, plan: Plan) -> str:
    return "a smoke run ends too early for its score to mean anything" if run.is_smoke else ""


@rule(
    "TSK004",
    "untrained-encoder",
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_reason_for_smoke_run,
    tasks=lambda task: has_labels(task) or compares_pairs(task),
)
def untrained_encoder(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Fine-tuning that starts from random weights.

    ## What it does
    Warns where a task of labels or of pairs has no `model.pretrained_checkpoint`. Does not apply to smoke
    profiles.

    ## Why is this bad?
    Labelled datasets are small: an encoder without pretraining stays near the majority class, and the run
    looks healthy.

    ## Example
    ```yaml
    task: classification
    ```

    ## Use instead
    ```yaml
    task: classification
    model:
      pretrained_checkpoint: runs/base/checkpoints/latest
    ```
    """
    if initial_weights(run.config) is None:
        yield Violation(
            "model.pretrained_checkpoint",
            f"task {run.config.task} starts from random weights",
            "set model.pretrained_checkpoint to a checkpoint of a pretraining run",
        )


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

    The loss of the training step must depend on a text's own tokens, and not on other texts or on padding;
    in a causal model a target must depend on the token at its own position, and its label must be
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
    answers = require_rehearsal(facts).answers
    violations = list(violations_for_wrong_answers(answers))
    yield from violations
    absent = unmeasured_kinds(answers, plan.shape.attention, spec_of(run.config))
    if absent and not violations:
        raise CannotTellError(early_end_reason(facts) or f"not tested: {', '.join(absent)}")


@data_rule("DAT024", "word-labels-lost", severity=Severity.WARN, tasks=labels_words)
def _word_labels_lost(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    prepared = require_prepared(facts)
    for split, words in (("training", prepared.words), ("evaluation", prepared.eval_words)):
        if words:
            yield from _lost_word_violations(run, split, words)


def _lost_word_violations(run: ResolvedRun, split: str, counts: Mapping[str, int]) -> Violations:
    total, without_token, cut = counts["total"], counts["without_token"], counts["cut"]
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


@rule("TSK008", "adapter-does-not-fit", severity=Severity.FAIL, level=Level.STATIC, tasks=may_train_adapter)
def _adapter_does_not_fit(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """An adapter that the model's layers, its weights or the optimizer do not support.

    ## What it does
    With `adapter.type: lora`, requires that `adapter.target_modules` names linear layers of the blocks (`qkv`
    of a NeoBERT, `query` of a BERT), that `adapter.r` is below the smaller side of each of them, that
    `model.pretrained_checkpoint` is set, and that the optimizer is not Muon. Warns if
    `adapter.alpha / adapter.r` is above 64.

    ## Why is this bad?
    An adapter on no layer trains the head alone. Factors of full rank have more weights than the layer that
    they change. Muon orthogonalizes the update of a whole matrix, and a low-rank factor is only a part of
    one. `alpha / r` multiplies the output of the adapter, so a large ratio diverges at any usual learning
    rate. The weights of the encoder are frozen: random ones stay random, and the adapter cannot replace them.

    ## Example
    ```yaml
    adapter:
      type: lora
      target_modules: [query, value]
    ```

    ## Use instead
    ```yaml
    adapter:
      type: lora
      target_modules: [qkv, wo]
    ```
    """
    config = run.config
    if config.adapter.type is None:
        return
    layers = plan.shape.linear_layers
    if not layers:  # GPT-2 multiplies by transposed matrices in modules of its own
        message = "the blocks of this model have no linear layers to add adapters to"
        yield Violation("adapter.type", message, "set adapter.type to null, which trains all weights")
        return
    targets, unknown = (
        target_modules(config.adapter, plan.shape),
        [*unknown_targets(config.adapter, plan.shape)],
    )
    if unknown or not targets:
        named = f"{printable(listed(unknown))}, which the blocks lack" if unknown else "no layer"
        hint = f"set adapter.target_modules to layers among {', '.join(layers)}, or to null for all"
        yield Violation("adapter.target_modules", f"target_modules names {named}", hint)
    for name in targets:
        smaller = min(layers[name].inputs, layers[name].outputs)
        if config.adapter.r >= smaller:
            message = f"r {config.adapter.r} is not below {smaller}, the smaller dimension of {name}"
            yield Violation("adapter.r", message, f"set adapter.r below {smaller}, such as 8 or 16")
            break
    if (scale := config.adapter.alpha / config.adapter.r) > MAX_SCALE:
        message = f"alpha {config.adapter.alpha} / r {config.adapter.r} is {scale:g} (at most {MAX_SCALE})"
        hint = f"set adapter.alpha to {2 * config.adapter.r}, twice adapter.r"
        yield Violation("adapter.alpha", message, hint, Severity.WARN)
    if OPTIMIZERS[config.optimizer.name].updates_matrices_by_muon:
        message = f"optimizer {config.optimizer.name} does not support low-rank adapters"
        yield Violation("optimizer.name", message, "set optimizer.name to adamw")
    if initial_weights(config) is None:
        message = "adapter.type is lora, but the frozen encoder starts from random weights"
        hint = "set model.pretrained_checkpoint to a checkpoint of a pretraining run, or adapter.type to null"
        yield Violation("model.pretrained_checkpoint", message, hint)

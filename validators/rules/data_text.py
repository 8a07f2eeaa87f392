"""Data rules: local text and its first rows, evaluation text and its overlap, mixtures, and epochs."""

from __future__ import annotations

import os.path
from collections import Counter
from functools import partial

from neobert.config.corpora import corpora_of, is_remote, paths_of
from neobert.config.schema import DatasetConfig
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plurals import counted, percent
from neobert.printable import printable
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rehearsal_parts import measured, rehearsal_of
from validators.remaining import MAX_EPOCHS, limiting_key, own_part_of
from validators.rule import CannotTellError, Violations, data_rule, needed, rehearsal_rule, rule
from validators.rules.data_prepared import is_short, prepared_of
from validators.tasks import of_conversations, of_text

MAX_ALTERED = 0.02
"""Share of the words of a text; in English text, words with accents are mostly foreign names, and fewer."""

MAX_HELD_OUT = 0.5
MAX_SHARED = 0.05
"""Share of the evaluation's tokens: web text repeats licences and boilerplate verbatim."""

HARMLESS_EPOCHS, EPOCH_LIMIT = 4.0, 40.0


def _has_no_files(run: ResolvedRun, plan: Plan) -> str:
    dataset = run.config.dataset
    has_path = bool(dataset.path) and not is_remote(dataset)
    is_local = has_path or any(corpus.path for corpus in dataset.mixture)
    return "" if is_local else "the text is not a local file or folder"


def _key(run: ResolvedRun) -> str:
    return "dataset.mixture" if run.config.dataset.mixture else "dataset.path"


text_rule = partial(rule, level=Level.HOST, needs=("text",), inapplicable=_has_no_files)


@text_rule("DAT031", "text-left-out", severity=Severity.WARN)
def text_left_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Files of a folder that may hold text and are not read.

    ## What it does
    Lists the files that a run does not read, with the reason: tables without the text column next to other
    text, and formats that have to be converted first. Files without text, such as images, empty files and
    hidden files, are counted in `plan` and in the report only.

    ## Why is this bad?
    The run trains on less text than its author thinks.

    ## Example
    ```text
    notes/: a.txt, b.jsonl (column text), c.csv (columns id and body)
    ```

    ## Use instead
    ```yaml
    dataset:
      mixture:
        - {path: notes, weight: 3}
        - {path: notes/c.csv, text_column: body, weight: 1}
    ```
    """
    for text in needed(facts.text):
        for each in text.left_out:
            if each.reason:
                files = f"{each.num_files:,} x {each.kind}"
                message = f"not read in {text.source}: {files} ({each.example}: {each.reason})"
                yield Violation(_key(run), message, each.hint)


@text_rule("DAT032", "unreadable-rows", severity=Severity.FAIL)
def unreadable_rows(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Local text whose files or first rows cannot be read.

    ## What it does
    Selects the files of `dataset.path` as a run does, and reads the first rows of the first 64: a path that
    does not exist, text that is not UTF-8, a column that is missing, a column that holds lists. `lint` does
    so without other packages: it does not open parquet and `.zst` files without `--data`, and where the path
    does not exist, as on a CI machine, the check is unknown.

    ## Why is this bad?
    The trainer would fail in the same way, but only after the queue and the start of all processes.

    ## Example
    ```yaml
    dataset:
      path: reviews.csv       # columns id and body
    ```

    ## Use instead
    ```yaml
    dataset:
      path: reviews.csv
      text_column: body
    ```
    """
    prepared = facts.inspection
    for text in needed(facts.text):
        message = f"{text.place}: {text.message}"
        is_missing = not text.exists and facts.data is not None  # DAT001 reports it
        is_refused = prepared is not None and prepared.refusal.message == message  # DAT014 reports it
        if text.message and not (is_missing or is_refused):
            yield Violation(_key(run), message, text.hint)


@text_rule(
    "DAT033",
    "evaluation-text-in-training",
    tasks=lambda task: of_text(task) or of_conversations(task),
    severity=Severity.FAIL,
)
def evaluation_text_in_training(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Evaluation files with text that is also in the training files.

    ## What it does
    Compares the first documents of the evaluation files with the first documents of the training files,
    without white space and case. Fails if more than 5 % of the compared evaluation text is in training
    documents. DAT006 compares the whole text in a rehearsal.

    ## Why is this bad?
    A loss on training text falls towards zero and does not measure generalization.

    ## Example
    ```text
    data/train.jsonl, and data/valid.jsonl with the same documents
    ```

    ## Use instead
    ```yaml
    dataset:
      path: data/train.jsonl
      validation_split: 0.05
    ```
    """
    for text in needed(facts.text):
        total = text.eval_characters
        if total and (share := text.shared_characters / total) > MAX_SHARED:
            compared = f"of {total:,} compared characters"
            message = f"{percent(share)} {compared} of the evaluation text in {text.source} are training text"
            hint = "remove these documents from the training files, or set dataset.validation_split and "
            yield Violation(_key(run), message, f"{hint}dataset.path to the training files alone")


def _splits_texts(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why a text may fill several rows, after that why the text is not local."""
    is_split = run.config.dataset.long_documents == "split" and not spec_of(run.config).labels_texts
    return _has_no_files(run, plan) or ("long texts are split into several rows" if is_split else "")


@rule("DAT037", "fewer-texts-than-rows", severity=Severity.FAIL, level=Level.HOST, needs=("text",),
      inapplicable=_splits_texts)  # fmt: skip
def fewer_texts_than_rows(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Fewer training texts than a microbatch has rows.

    ## What it does
    Counts the texts of local files that are read to their end, without those that `dataset.eval_samples` or
    `dataset.validation_split` holds out, where a text fills one row at most; a pair has the texts of its hard
    negatives, too. Fails below `trainer.per_device_train_batch_size`.

    ## Why is this bad?
    No microbatch is ever full: the trainer refuses such a text, but only after its preparation.

    ## Example
    ```yaml
    dataset: {path: ten.csv}
    trainer: {per_device_train_batch_size: 16}
    ```

    ## Use instead
    ```yaml
    dataset: {path: ten.csv}
    trainer: {per_device_train_batch_size: 8}
    ```
    """
    config, texts = run.config, needed(facts.text)
    counts = [text.documents for text in texts if text.documents is not None]
    if not counts or len(counts) < len(texts):
        return
    documents, held_out = sum(counts), 0
    if not any(text.num_eval_files for text in texts):
        held_out = config.dataset.eval_samples or round(documents * (config.dataset.validation_split or 0))
    key, rows = "trainer.per_device_train_batch_size", config.trainer.per_device_train_batch_size
    most = (documents - held_out) * spec_of(config).texts(config)
    if most < rows:
        message = f"{most:,} training texts do not fill a microbatch of {rows:,} rows"
        yield Violation(key, message, f"lower {key}, or add text")


@text_rule("DAT035", "words-altered-by-the-tokenizer", severity=Severity.WARN)
def words_altered_by_the_tokenizer(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A tokenizer that deletes accents or vowel signs of much of the text, or the case of labelled words.

    ## What it does
    Reads from the tokenizer's file whether its normalizer deletes combining marks or lower-cases, and applies
    that to the first words of a local text. Warns if it changes more than 2 % of them beyond their case; for
    labelled words, also if it lower-cases more than 2 %. A tokenizer that is not on this machine is not
    judged, nor that of a run that resumes.

    ## Why is this bad?
    Uncased BERT tokenizers delete the vowel signs of Hindi, the tones of Thai and Vietnamese and the points
    of Hebrew: different words become the same tokens, and no model can distinguish them. Names of people and
    places are often recognized by their case.

    ## Example
    ```yaml
    dataset:
      path: hindi.txt
    tokenizer:
      name: bert-base-uncased     # reads में as म
    ```

    ## Use instead
    ```yaml
    dataset:
      path: hindi.txt
    tokenizer:
      name: null                  # trains a tokenizer on the text, which keeps it
    ```
    """
    if facts.resume is not None and facts.resume.exists and not facts.resume.is_continued:
        return
    task = spec_of(run.config)
    labels_words = task.labels is not None and not task.labels_texts
    for text in needed(facts.text):
        changes = [(text.altered_words, text.altered_example, "changes", "strip_accents")]
        if labels_words:
            changes.append((text.lowered_words, text.lowered_example, "lower-cases", "lowercase"))
        for number, example, verb, key in changes:
            if text.words and (share := number / text.words) > MAX_ALTERED:
                word, read = map(printable, example)
                yield Violation(
                    "tokenizer",
                    f"the tokenizer {verb} {percent(share)} of the first {text.words:,} words in "
                    f"{text.source}, such as {word} to {read} (limit {percent(MAX_ALTERED)})",
                    _way_to_keep(run, key),
                )


def _way_to_keep(run: ResolvedRun, key: str) -> str:
    """Return the hint for words that the tokenizer changes; `key` is that of a tokenizer to train."""
    tokenizer = run.config.tokenizer
    if tokenizer.path is None and tokenizer.name is None:
        return f"set tokenizer.{key} to false"
    if (weights := initial_weights(run.config)) is not None:
        return f"replace model.pretrained_checkpoint {weights} by weights whose tokenizer keeps the text"
    named = "tokenizer.path" if tokenizer.path is not None else "tokenizer.name"
    return f"set {named} to null: the run then trains a tokenizer that keeps the text"


@rehearsal_rule("DAT006", "evaluation-not-held-out", severity=Severity.FAIL)
def _evaluation_not_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    rehearsal = rehearsal_of(facts)
    evaluation = measured(rehearsal.evaluation, facts, "the evaluation")
    if not evaluation.is_configured:
        return
    if not evaluation.was_announced or evaluation.loss is None:
        message = "the evaluation before step 1 produced no loss"
        yield Violation(
            "dataset",
            message,
            "raise dataset.validation_split, or set dataset.eval_split to a split with more text",
        )
    overlap = measured(rehearsal.overlap, facts, "the overlap of training and evaluation text")
    if overlap.shared_share > MAX_SHARED:
        yield Violation(
            "dataset",
            f"{percent(overlap.shared_share)} of the evaluation's tokens also occur in training documents "
            f"({overlap.eval_documents:,} documents compared with {overlap.train_documents:,})",
            "set dataset.validation_split, or dataset.eval_split to a separate split",
        )


@rule("DAT026", "evaluation-split-of-training", severity=Severity.FAIL, level=Level.STATIC)
def _evaluation_split_of_training(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    for corpus in corpora_of(run.config.dataset):
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
def _nothing_held_out(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
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
    if prepared_of(facts).num_eval_tokens is None:
        message = "no evaluation: the data has no evaluation split and none of it is held out"
        yield Violation("dataset", message, "set dataset.validation_split, e.g. to 0.01")


def _has_no_mixture(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.dataset.mixture else "dataset.mixture is empty"


@rule(
    "DAT018",
    "undrawable-mixture",
    severity=Severity.FAIL,
    level=Level.STATIC,
    inapplicable=_has_no_mixture,
    waivable=False,
)
def _undrawable_mixture(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A mixture that is streamed, or that names one text twice.

    ## What it does
    Fails where `dataset.mixture` and `dataset.streaming` are both set, where a corpus has no path and no name
    or both, and where two corpora are the same split of the same text.

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
    corpora = corpora_of(dataset)
    for number, corpus in enumerate(corpora):
        if (corpus.path is None) == (corpus.name is None):
            how = "no path and no name" if corpus.path is None else "a path and a name"
            place = f"dataset.mixture[{number}]"
            yield Violation("dataset.mixture", f"{place} has {how}", f"set a path or a name in {place}")
    for text, count in Counter(map(_text, corpora)).items():
        if count > 1 and any(text[:2]):
            message = f"{text[0] or text[1]} ({text[-1]}) is in dataset.mixture {count} times"
            yield Violation("dataset.mixture", message, "list each text once, with the sum of its weights")


def _text(corpus: DatasetConfig) -> tuple[str, ...]:
    """Return the values that identify the text of a corpus."""
    path = ", ".join(map(os.path.normpath, paths_of(corpus)))
    return path, corpus.name or "", corpus.config or "", corpus.train_split


@data_rule("DAT019", "overread-corpus", severity=Severity.WARN, inapplicable=_has_no_mixture)
def _overread_corpus(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A corpus of a mixture that is repeated for too many epochs.

    ## What it does
    Divides the tokens that the run draws from each corpus by the tokens that the corpus has. Warns above 4
    epochs: up to that number, repeated text is worth nearly as much as new text (Muennighoff et al.,
    arXiv:2305.16264).

    ## Why is this bad?
    A small corpus with a large weight is learned by heart, and the loss of the mixture hides that.

    ## Example
    ```text
    data/books is read 31.0 times: 75.0% of the tokens are drawn from 2,100,000
    ```

    ## Use instead
    ```yaml
    dataset:
      mixture:
        - {path: data/books, weight: 0.1}
        - {path: data/web, weight: 0.9}
    ```
    """
    for corpus in prepared_of(facts).corpora:
        if corpus.epochs > HARMLESS_EPOCHS:
            share = f"{percent(corpus.share)} of the tokens are drawn from {corpus.tokens:,}"
            yield Violation(
                "dataset.mixture",
                f"{corpus.label} is read {corpus.epochs:,.1f} times: {share}",
                "lower the weight of this corpus, add text to this corpus, or lower trainer.max_steps",
            )


def _is_not_counted(run: ResolvedRun, plan: Plan) -> str:
    return "the data is a stream of unknown length" if run.config.dataset.streaming else is_short(run, plan)


@data_rule("DAT004", "too-little-text", severity=Severity.FAIL, inapplicable=_is_not_counted)
def _too_little_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Too little text for the number of steps, so that it is repeated too often.

    ## What it does
    Divides the tokens that the run reads by those of the prepared training text. Fails above 40 epochs, as
    many as BERT had (Devlin et al., arXiv:1810.04805). In a production run, warns above 4 epochs: up to that
    number, repeated text is worth nearly as much as new text (Muennighoff et al., arXiv:2305.16264). Smoke
    runs are exempt.

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
    epochs = prepared_of(facts).epochs
    if epochs is None:
        raise CannotTellError("the size of the data is unknown")
    if epochs > EPOCH_LIMIT or (run.is_production and epochs > HARMLESS_EPOCHS):
        yield Violation(
            limiting_key(run, plan),
            f"the run reads the data {epochs:,.1f} times (limit {EPOCH_LIMIT:g}; in production a warning "
            f"above {HARMLESS_EPOCHS:g})",
            _less_often(run, plan, epochs, 0),
            None if epochs > EPOCH_LIMIT else Severity.WARN,
        )


def _is_not_estimated(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why epochs are not estimated from file sizes, or an empty string."""
    if run.config.dataset.mixture:
        return "a mixture is checked by DAT019, on the prepared text"
    if plan.epochs.value is None:
        return "the size of the text is not known before the data is prepared"
    return is_short(run, plan)


@rule(
    "DAT025",
    "text-learned-by-heart",
    tasks=of_text,
    severity=Severity.WARN,
    level=Level.STATIC,
    inapplicable=_is_not_estimated,
)
def _text_learned_by_heart(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that reads a small text many times, by the size of its files.

    ## What it does
    Divides the tokens that the run reads by those of its training files, estimated at 4 bytes per token, as
    in English; steps of a run that is continued on this text do not count (`trainer.continue_from`). Warns
    above 40 passes, the limit of text that was prepared and counted (DAT004), for which this rule has no
    finding. Compressed files and Parquet files are not checked, because their size differs from that of the
    text.

    ## Why is this bad?
    The loss of a text that is read a hundred times falls until the model has learned it by heart, and looks
    like learning. A run of hours on a text for minutes is better spent on more text.

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
    if plan.epochs.value is None or facts.prepared is not None:
        return
    part = own_part_of(run, plan, facts)
    passes = plan.epochs.value * part.tokens.value / plan.total_tokens.value
    if passes > EPOCH_LIMIT:
        yield Violation(
            limiting_key(run, plan),
            f"the run reads the text about {passes:,.0f} times: {part.tokens.value:,} tokens in "
            f"{counted(part.steps, 'step')} ({plan.epochs.reason})",
            _less_often(run, plan, passes, part.first_step),
        )


def _less_often(run: ResolvedRun, plan: Plan, epochs: float, first_step: int) -> str:
    """Return the hint with which the steps from `first_step` read the text `HARMLESS_EPOCHS` times."""
    key, value = limiting_key(run, plan), f"{HARMLESS_EPOCHS:g}"
    if key != MAX_EPOCHS:
        steps = (plan.max_steps.value - first_step) * HARMLESS_EPOCHS / epochs
        value = str(first_step + max(1, int(steps)))
    return f"add text, or set {key} to {value}, which reads this text {HARMLESS_EPOCHS:g} times"

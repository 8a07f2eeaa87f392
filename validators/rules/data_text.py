"""Data rules: files of local text, and their first rows."""

from __future__ import annotations

from functools import partial

from neobert.config.corpora import hint_for_one_document, is_remote
from neobert.config.schema import DatasetConfig
from neobert.errors import prefix_place
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plurals import percent
from neobert.printable import printable
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, require_group, rule
from validators.rules.data_corpora import MAX_SHARED
from validators.tasks import predicts_text_tokens, trains_on_conversations

MAX_ALTERED = 0.02
"""Maximum share of altered words; English text has fewer words with accents, mostly foreign names."""


def _why_no_files(run: ResolvedRun, plan: Plan) -> str:
    dataset = run.config.dataset
    has_path = bool(dataset.path) and not is_remote(dataset)
    is_local = has_path or any(corpus.path for corpus in dataset.mixture)
    return "" if is_local else "the text is not a local file or folder"


def _text_key(run: ResolvedRun) -> str:
    return "dataset.mixture" if run.config.dataset.mixture else "dataset.path"


text_rule = partial(rule, level=Level.HOST, needs=("text",), inapplicable=_why_no_files)


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
    for text in require_group(facts.text):
        for each in text.left_out:
            if each.reason:
                files = f"{each.num_files:,} x {each.kind}"
                message = (
                    f"files in {text.source} are not read: {files}, such as {each.example} ({each.reason})"
                )
                yield Violation(_text_key(run), message, each.hint)


@text_rule("DAT032", "unreadable-rows", severity=Severity.FAIL)
def unreadable_rows(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Local text whose files or first rows cannot be read.

    ## What it does
    Selects the files of `dataset.path` as a run does, and reads the first rows of the first 64: a path that
    does not exist, text that is not UTF-8, a column that is missing, a column that holds lists. `lint` opens
    parquet and `.zst` files with `--data` only, because they need other packages. If the path does not exist,
    as on a CI machine, the check is unknown. A text of one document fails too if `dataset.validation_split`
    holds out a share of the documents: none is left for training, or for evaluation.

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
    refusal = None if facts.inspection is None else facts.inspection.refusal  # DAT014 reports it
    for text in require_group(facts.text):
        message = prefix_place(text.place, text.message)
        is_missing = not text.exists and facts.data is not None  # DAT001 reports it
        is_refused = refusal is not None and refusal.message == message
        is_single = text.documents == 1 and not text.num_eval_files and _holds_out_share(run.config.dataset)
        if text.message and not (is_missing or is_refused):
            yield Violation(_text_key(run), message, text.hint)
        elif is_single and (refusal is None or refusal.code != "DAT004"):
            message = f"{text.source} is one document, and dataset.validation_split needs several"
            yield Violation(_text_key(run), message, hint_for_one_document((text.source,)))


def _holds_out_share(dataset: DatasetConfig) -> bool:
    others = (dataset.eval_split, dataset.eval_samples)
    return bool(dataset.validation_split) and others == (None, None) and not dataset.streaming


@text_rule(
    "DAT033",
    "evaluation-text-in-training",
    tasks=lambda task: predicts_text_tokens(task) or trains_on_conversations(task),
    severity=Severity.FAIL,
)
def evaluation_text_in_training(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Evaluation files with text that is also in the training files.

    ## What it does
    Compares the first documents of the evaluation files with the first documents of the training files,
    without whitespace and case. Fails if more than 5 % of the compared evaluation text is in training
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
    for text in require_group(facts.text):
        total = text.eval_characters
        if total and (share := text.shared_characters / total) > MAX_SHARED:
            compared = f"of {total:,} compared characters"
            message = (
                f"{percent(share)} {compared} of the evaluation text in {text.source} are training text "
                f"(limit {MAX_SHARED:.0%})"
            )
            hint = "remove these documents from the training files, or set dataset.validation_split and "
            yield Violation(_text_key(run), message, f"{hint}dataset.path to the training files alone")


def _why_texts_are_not_counted(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why texts cannot be counted against rows: they are remote, or split; else empty."""
    is_split = run.config.dataset.long_documents == "split" and not spec_of(run.config).labels_texts
    return _why_no_files(run, plan) or ("long texts are split into several rows" if is_split else "")


@rule("DAT037", "fewer-texts-than-rows", severity=Severity.FAIL, level=Level.HOST, needs=("text",),
      inapplicable=_why_texts_are_not_counted)  # fmt: skip
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
    config, texts = run.config, require_group(facts.text)
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
    """A tokenizer that deletes accents or vowel signs in much of the text, or lower-cases labelled words.

    ## What it does
    Reads from the tokenizer's file whether its normalizer deletes combining marks or lower-cases, and applies
    that to the first words of a local text. Warns if it changes more than 2 % of them beyond their case; for
    labelled words, also if it lower-cases more than 2 %. Not checked if the tokenizer is not on this machine,
    or if the run resumes.

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
    labels = spec_of(run.config).labels
    for text in require_group(facts.text):
        changes = [(text.altered_words, text.altered_example, "changes", "strip_accents")]
        if labels is not None and labels(run.config).unit == "word":
            changes.append((text.lowered_words, text.lowered_example, "lower-cases", "lowercase"))
        for number, example, verb, key in changes:
            if text.words and (share := number / text.words) > MAX_ALTERED:
                word, read = map(printable, example)
                yield Violation(
                    "tokenizer",
                    f"the tokenizer {verb} {percent(share)} of the first {text.words:,} words in "
                    f"{text.source}, such as {word} to {read} (limit {percent(MAX_ALTERED)})",
                    _keep_words_hint(run, key),
                )


def _keep_words_hint(run: ResolvedRun, key: str) -> str:
    """Return the hint to keep the words that the tokenizer changes; section `tokenizer` has this `key`."""
    tokenizer = run.config.tokenizer
    if tokenizer.path is None and tokenizer.name is None:
        return f"set tokenizer.{key} to false"
    if (weights := initial_weights(run.config)) is not None:
        return f"replace model.pretrained_checkpoint {weights} with weights whose tokenizer keeps the text"
    named = "tokenizer.path" if tokenizer.path is not None else "tokenizer.name"
    return f"set {named} to null: the run then trains a tokenizer that keeps the text"

"""Data rules: location of data, tokenizer and weights, and settings of the data."""

from __future__ import annotations

from neobert.config.corpora import (
    BUILDER_NAMES,
    USE_PATH,
    corpus_label,
    file_format_message,
    is_remote,
    list_corpora,
)
from neobert.config.schema import DatasetConfig
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.planning import explain_missing_weights
from validators.rule import Violations, require_group, rule
from validators.tasks import masks_tokens

MIN_MASKED, MAX_MASKED, HARDLY_ANY_TEXT = 0.05, 0.6, 0.95
"""Shares of masked tokens: the usual minimum and maximum (published encoders mask 15 % to 40 %), and the
share that leaves hardly any text."""


@rule("DAT001", "missing-data", severity=Severity.FAIL, level=Level.HOST, needs=("data",))
def missing_data(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Data, a tokenizer or weights that are missing, empty or not readable.

    ## What it does
    Checks `dataset.path`, `dataset.name` or `dataset.mixture`; `trainer.eval_source_path`; `tokenizer.path`
    or `tokenizer.name`; and `model.pretrained_checkpoint`, whose config.json must have the sizes of the
    section `model`, and whose weights the sizes of the model (`model.type: hf`), in safetensors. Embedding
    and decoder of a causal model are one tensor or two, as `tie_word_embeddings` says. For a run that resumes
    from its own checkpoint, problems of initial weights are a warning only: they are not used.

    ## Why is this bad?
    The trainer would fail in the same way, but only after the queue and the start of all processes.

    ## Example
    ```yaml
    dataset:
      path: data/pretrian
    ```

    ## Use instead
    ```yaml
    dataset:
      path: data/pretrain
    ```
    """
    data = require_group(facts.data)
    dataset = run.config.dataset
    path = "dataset.mixture" if dataset.mixture else "dataset.path" if dataset.path else "dataset.name"
    if not data.source:
        pass  # DAT013 says that no data is set
    elif not data.exists:
        message = f"{data.source} not found{f': {data.reason}' if data.reason else ''}"
        yield Violation(path, message, f"set {path} to an existing file, folder or dataset")
    elif _has_files(dataset) and not data.size_bytes and not data.reason:
        yield Violation(path, f"{data.source} is empty", f"set {path} to a file or folder with text")
    elif not data.is_readable:
        message = f"{data.source} cannot be read: {data.reason or 'permission denied'}"
        yield Violation(path, message, f"fix the permissions of {data.source}")
    if not data.tokenizer_exists:
        is_path = bool(run.config.tokenizer.path)
        path = "tokenizer.path" if is_path else "tokenizer.name"
        message = f"there is no tokenizer {'in' if is_path else 'named'} {data.tokenizer}"
        yield Violation(path, message, f"correct {path}, or remove that key to train a tokenizer on the data")
    if data.source_reason:
        path, message = "trainer.eval_source_path", f"the source text cannot be read: {data.source_reason}"
        yield Violation(path, message, f"set {path} to an existing file or folder")
    if data.weights_reason:
        yield Violation(
            data.weights_key or "model.pretrained_checkpoint",
            f"cannot start from the weights in {data.weights}: {data.weights_reason}",
            data.weights_hint
            or (explain_missing_weights(run)[1] if plan.assumptions.hub_weights else "")
            or "set model.pretrained_checkpoint to a checkpoint folder or a safetensors file, or to null for "
            "random weights",
            Severity.WARN if facts.resume is not None and facts.resume.is_verified else None,
        )


def _has_files(dataset: DatasetConfig) -> bool:
    return any(corpus.path and not is_remote(corpus) for corpus in list_corpora(dataset))


@rule("DAT009", "no-cache-folder", severity=Severity.FAIL, level=Level.HOST, needs=("data",))
def no_cache_folder(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """No folder for the cache of prepared data.

    ## What it does
    Fails if the cache folder would be below a home directory and the user has none, or if no file can be
    created in it. A cache that contains prepared text may be read-only. Training and `data prepare` use the
    same code for a cache folder that is not writable or is locked by another process.

    ## Why is this bad?
    A container that runs under an arbitrary user id often has no HOME, and a disk may be mounted read-only:
    preparation would fail after the queue.

    ## Example
    ```text
    docker run --user 12345 IMAGE neobert-launch train --profile cpu-demo
    ```

    ## Use instead
    ```text
    docker run --user 12345 -e NEOBERT_CACHE=/scratch/cache IMAGE neobert-launch train --profile cpu-demo
    ```
    """
    data = require_group(facts.data)
    if data.cache_reason:
        keys = "dataset.cache_dir" if run.config.dataset.cache_dir else "NEOBERT_CACHE or dataset.cache_dir"
        hint = f"set {keys} to a writable folder"
        yield Violation("dataset.cache_dir", data.cache_reason, hint)


def _why_not_streamed(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.dataset.streaming else "the data is prepared, not streamed"


@rule(
    "DAT007", "endless-evaluation", severity=Severity.FAIL, level=Level.STATIC, inapplicable=_why_not_streamed
)
def endless_evaluation(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A streamed corpus without a bounded evaluation.

    ## What it does
    Requires `dataset.eval_samples` for a streaming run, or `trainer.eval_max_batches` with an evaluation
    split: `dataset.eval_split`, or files of the folder such as `validation.jsonl`. `dataset.validation_split`
    is a share of a length, and the length of a stream is unknown.

    ## Why is this bad?
    Otherwise the evaluation of a stream has no end, and its documents are not kept out of training.

    ## Example
    ```yaml
    dataset:
      streaming: true
    ```

    ## Use instead
    ```yaml
    dataset:
      streaming: true
      eval_samples: 2000
    ```
    """
    dataset, limit = run.config.dataset, "trainer.eval_max_batches"
    has_split = dataset.eval_split is not None or any(text.num_eval_files for text in facts.text or ())
    missing = [] if has_split else ["dataset.eval_split (if the data has such a split)"]
    missing += [limit] if run.config.trainer.eval_max_batches is None else []
    if dataset.eval_samples is None and missing:
        yield Violation(
            "dataset.eval_samples",
            f"a streaming run needs dataset.eval_samples, or an evaluation split and {limit}",
            f"set dataset.eval_samples, or {' and '.join(missing)}",
        )


@rule("DAT008", "unpinned-tokenizer", severity=Severity.WARN, level=Level.STATIC, production_only=True)
def unpinned_tokenizer(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A tokenizer from the Hub without a revision.

    ## What it does
    Warns in a production run if `tokenizer.name` is set and `tokenizer.revision` is null. A local path is
    pinned by its digest, and smoke runs train their own tokenizer.

    ## Why is this bad?
    A name on the Hub refers to the latest push of its owner. Two runs of the same file may then
    produce different tokens.

    ## Example
    ```yaml
    tokenizer:
      name: bert-base-uncased
    ```

    ## Use instead
    ```yaml
    tokenizer:
      name: bert-base-uncased
      revision: 86b5e0934494bd15c9632b12f734a8a67f723594
    ```
    """
    tokenizer = run.config.tokenizer
    if tokenizer.name is not None and tokenizer.path is None and tokenizer.revision is None:
        message = f"tokenizer.name {tokenizer.name} is not pinned to a revision"
        yield Violation("tokenizer.revision", message, "set tokenizer.revision to a commit of the repository")


@rule("DAT013", "ambiguous-text", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def ambiguous_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Data from more than one source, or from none.

    ## What it does
    Requires exactly one of `dataset.path`, `dataset.name` and `dataset.mixture`, which is not empty. If the
    profile sets one and the run file another, the run file's is used; this rule is about a single file, or a
    single command line, that sets several. Names of file formats such as `json` and `csv` are rejected as
    datasets: for these, the `datasets` library reads every such file below the current directory.

    ## Why is this bad?
    The trainer cannot know which source is the intended one, and does not guess.

    ## Example
    ```yaml
    profile: cpu-demo
    dataset:
      name: builtin:python-docs
      path: data/novels
    ```

    ## Use instead
    ```yaml
    profile: cpu-demo
    dataset:
      path: data/novels
    ```
    """
    dataset = run.config.dataset
    if dataset.path is not None and dataset.name is not None:
        message = f"dataset.path ({corpus_label(dataset)}) and dataset.name ({dataset.name}) are both set"
        yield Violation("dataset.path", message, "remove dataset.path or dataset.name")
    elif dataset.mixture and (dataset.path or dataset.name) is not None:
        path = "dataset.name" if dataset.path is None else "dataset.path"
        yield Violation(path, f"{path} and dataset.mixture are both set", f"remove {path} or dataset.mixture")
    elif dataset.path is not None and not dataset.path:
        hint = "set dataset.path to a file or folder; a shell variable in dataset.path may be unset"
        yield Violation("dataset.path", "dataset.path is empty", hint)
    elif dataset.path is None and dataset.name is None and not dataset.mixture:
        message = "none of dataset.path, dataset.name and dataset.mixture is set"
        yield Violation("dataset", message, "set dataset.path, dataset.name or dataset.mixture")
    for corpus in list_corpora(dataset):
        if corpus.path is None and corpus.name in BUILDER_NAMES:
            path = "dataset.mixture" if dataset.mixture else "dataset.name"
            yield Violation(path, file_format_message(corpus.name), USE_PATH)


@rule("DAT016", "masked-share-out-of-band", tasks=masks_tokens, severity=Severity.FAIL, level=Level.STATIC)
def masked_share_out_of_band(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A masking rate that leaves almost no text to read, or almost nothing to predict.

    ## What it does
    Fails if `datacollator.mlm_probability` or `mlm_probability_eval` is 0.95 or more, or if a microbatch has
    less than one masked token on average. Warns outside 0.05 to 0.6.

    ## Why is this bad?
    A model that sees only masks learns how often each token occurs: its loss falls, then plateaus. One that
    predicts one token in a thousand pays for the other 999 and learns from one.

    ## Example
    ```yaml
    datacollator:
      mlm_probability: 1.0
      mask_all: true
    ```

    ## Use instead
    ```yaml
    datacollator:
      mlm_probability: 0.2
    ```
    """
    collator, tokens = run.config.datacollator, plan.tokens_per_microbatch.value
    for key in ("mlm_probability", "mlm_probability_eval"):
        share = getattr(collator, key)
        if share is not None:
            yield from _masked_share_violations(f"datacollator.{key}", share, tokens)


def _masked_share_violations(key: str, share: float, tokens: int) -> Violations:
    targets, weight = share * tokens, None
    if share >= HARDLY_ANY_TEXT:
        problem = "almost no text is left as input"
    elif targets < 1:
        problem = f"{targets:.2g} on average in a microbatch of {tokens:,} tokens"
    elif not MIN_MASKED <= share <= MAX_MASKED:
        problem, weight = f"outside {MIN_MASKED:.0%} to {MAX_MASKED:.0%}", Severity.WARN
    else:
        return
    message = f"{share:.3%} of the tokens are masked: {problem}"
    yield Violation(key, message, f"set {key} between 0.15 and 0.4, the usual range", weight)

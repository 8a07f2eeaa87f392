"""DAT: the text and the tokenizer."""

from __future__ import annotations

from neobert.config.builder_names import BUILDER_NAMES, USE_PATH, describe_builder
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule

LEAST_MASKED, MOST_MASKED, HARDLY_ANY_TEXT = 0.05, 0.6, 0.95
"""Shares of the tokens. Published encoders predict 0.15 to 0.4 of them."""


@rule("DAT001", "missing-data", severity=Severity.FAIL, level=Level.HOST, needs=("data",))
def missing_data(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Text, a tokenizer or weights that are not there, are empty, or that this process may not read.

    ## What it does
    Judges what the probe found under `dataset.path` or `dataset.name`, under `tokenizer.path` or
    `tokenizer.name`, and under `model.pretrained_checkpoint`. A run that goes on from its own checkpoint
    needs no other weights, and is warned.

    ## Why is this bad?
    The trainer would say the same, after the queue and the start of every process.

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
    data = facts.data
    assert data is not None
    path = "dataset.path" if run.config.dataset.path else "dataset.name"
    if not data.exists:
        yield Violation(
            path, f"{data.source} is not there: {data.reason or 'not found'}", "correct the path or the name"
        )
    elif run.config.dataset.path and not data.size_bytes and not data.reason:
        yield Violation(path, f"{data.source} is empty", "point it at text")
    elif not data.is_readable:
        yield Violation(
            path, f"{data.source} cannot be read: {data.reason or 'no permission'}", "mend its permissions"
        )
    if not data.tokenizer_exists:
        path = "tokenizer.path" if run.config.tokenizer.path else "tokenizer.name"
        message = f"there is no tokenizer {'in' if run.config.tokenizer.path else 'named'} {data.tokenizer}"
        yield Violation(
            path, message, "correct the path or the name; with neither, one is trained from the text"
        )
    if data.weights_reason:
        yield Violation(
            "model.pretrained_checkpoint",
            f"no run can start from the weights of {data.weights}: {data.weights_reason}",
            "name a checkpoint folder or a safetensors file; null starts from new weights",
            Severity.WARN if facts.resume is not None and facts.resume.is_verified else None,
        )


@rule("DAT009", "no-cache-folder", severity=Severity.FAIL, level=Level.HOST, needs=("data",))
def no_cache_folder(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """No folder to keep prepared text in.

    ## What it does
    Fails where the cache folder would be below a home directory, and the user has none. Training and
    `data prepare` report with the same code a cache folder that cannot be written to, or that another
    process holds.

    ## Why is this bad?
    A container that runs under any user id often has no HOME: preparing the text would fail after the queue.

    ## Example
    ```text
    docker run --user 12345 IMAGE neobert-launch train --profile cpu-demo
    ```

    ## Use instead
    ```text
    docker run --user 12345 -e NEOBERT_CACHE=/scratch/cache IMAGE neobert-launch train --profile cpu-demo
    ```
    """
    data = facts.data
    assert data is not None
    if data.cache_reason:
        hint = "set NEOBERT_CACHE or dataset.cache_dir to a folder that can be written to"
        yield Violation("dataset.cache_dir", data.cache_reason, hint)


def _streams(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.dataset.streaming else "the text is prepared, not streamed"


@rule("DAT007", "endless-evaluation", severity=Severity.FAIL, level=Level.STATIC, inapplicable=_streams)
def endless_evaluation(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A streamed corpus without a word on what it is evaluated on.

    ## What it does
    Asks a streaming run for `dataset.eval_split` or `dataset.eval_samples`. A share of a stream
    (`dataset.validation_split`) needs a length that a stream has not.

    ## Why is this bad?
    Nothing bounds the evaluation of a stream, and nothing keeps its documents out of training.

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
    dataset = run.config.dataset
    if dataset.eval_split is None and dataset.eval_samples is None:
        yield Violation(
            "dataset.eval_samples",
            "a streaming run names neither an evaluation split nor a number of documents",
            "set dataset.eval_samples, or dataset.eval_split where the data has one",
        )


@rule("DAT008", "unpinned-tokenizer", severity=Severity.WARN, level=Level.STATIC, production_only=True)
def unpinned_tokenizer(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A tokenizer from the hub without a revision.

    ## What it does
    Warns in a production run where `tokenizer.name` is used and `tokenizer.revision` is null. A path is
    pinned by its digest, and smoke runs train their own.

    ## Why is this bad?
    A name on the hub points at what its owner pushed last. Two runs of one file may then disagree on
    every token.

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
        yield Violation(
            "tokenizer.revision", f"{tokenizer.name} is not pinned to a revision", "set tokenizer.revision"
        )


@rule("DAT013", "ambiguous-text", severity=Severity.FAIL, level=Level.STATIC, waivable=False)
def ambiguous_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Text from two places, or from none.

    ## What it does
    Asks for exactly one of `dataset.path` and `dataset.name`. Where a profile gives one and the run file the
    other, the run file's holds; this is about a single file, or a single command line, that gives both.
    Names of file formats such as `json` and `csv` are no data sets: for these, the `datasets` library reads
    every such file below the current directory.

    ## Why is this bad?
    Neither is more likely to be meant than the other, and the trainer takes no guess.

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
        message = f"dataset.path {dataset.path} and dataset.name {dataset.name} are both set"
        yield Violation("dataset.path", message, "remove one of them")
    elif dataset.name in BUILDER_NAMES:
        yield Violation("dataset.name", describe_builder(dataset.name), USE_PATH)
    elif dataset.path is None and dataset.name is None:
        yield Violation("dataset", "neither dataset.path nor dataset.name says where the text is", "set one")


@rule("DAT016", "masked-share-out-of-band", severity=Severity.FAIL, level=Level.STATIC)
def masked_share_out_of_band(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """So many tokens to predict that none are left to read, or hardly any to predict.

    ## What it does
    Refuses a `datacollator.mlm_probability` of 0.95 and above, and one at which a microbatch has less than
    one target on the average. Warns outside 0.05 to 0.6.

    ## Why is this bad?
    A model that sees masks only learns how often each token occurs: its loss falls, and then stays. One that
    predicts a token in a thousand pays for the other 999 and learns from one.

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
    share, tokens = run.config.datacollator.mlm_probability, plan.tokens_per_microbatch.value
    targets, weight = share * tokens, None
    if share >= HARDLY_ANY_TEXT:
        told = "the input holds hardly any text"
    elif targets < 1:
        told = f"{targets:.2g} on the average in a microbatch of {tokens:,}"
    elif not LEAST_MASKED <= share <= MOST_MASKED:
        told, weight = f"outside {LEAST_MASKED:.0%} to {MOST_MASKED:.0%}", Severity.WARN
    else:
        return
    message = f"{share:.3%} of the tokens are predicted: {told}"
    yield Violation("datacollator.mlm_probability", message, "0.15 to 0.4 are usual", weight)

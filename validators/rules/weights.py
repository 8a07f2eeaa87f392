"""Rules about initial weights: location, tokenizer, positions and head."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from neobert.config import to_dict
from neobert.config.canonical import flatten
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plurals import listed
from neobert.printable import printable
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.planning import explain_missing_weights
from validators.rule import CannotTellError, Violations, require_group, rule
from validators.tasks import compares_pairs, has_labels

if TYPE_CHECKING:
    from validators.facts_host import DataFacts, ResumeFacts
    from validators.facts_run import PreparedFacts

WEIGHTS_SUFFIX = ".safetensors"


def why_no_weights(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about initial weights do not apply; empty if they apply."""
    return "the run starts from random weights" if initial_weights(run.config) is None else ""


@rule("DAT034", "weights-on-the-hub", severity=Severity.WARN, level=Level.STATIC, inapplicable=why_no_weights)
def weights_on_the_hub(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Initial weights on the Hub that are not pinned, or not on this machine.

    ## What it does
    Warns if `model.pretrained_checkpoint` has the form OWNER/NAME, is not a folder here, and
    `model.revision` is not a commit; also if the commit is not in the local Hub cache. `train` and
    `preflight` download a commit before their checks. Where the machine was probed, DAT001 fails instead.

    ## Why is this bad?
    A name alone refers to the latest push, so the run could not be repeated. Without the download neither
    sizes nor weights can be checked.

    ## Example
    ```yaml
    model:
      pretrained_checkpoint: owner/name
    ```

    ## Use instead
    ```yaml
    model:
      pretrained_checkpoint: owner/name
      revision: 0123456789abcdef0123456789abcdef01234567   # `neobert-launch init --from owner/name` writes it
    ```
    """
    if plan.assumptions.hub_weights and facts.data is None:
        yield Violation("model.pretrained_checkpoint", *explain_missing_weights(run))


def _reason_without_weights(run: ResolvedRun, plan: Plan) -> str:
    return "" if run.config.trainer.continue_from is not None else why_no_weights(run, plan)


@rule(
    "DAT029",
    "weights-of-another-tokenizer",
    severity=Severity.FAIL,
    level=Level.HOST,
    needs=("data",),
    inapplicable=_reason_without_weights,
)
def weights_of_another_tokenizer(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Weights that were trained with another tokenizer, or with other special tokens.

    ## What it does
    Compares the token ids of the run's tokenizer with those in the `tokenizer.json` next to
    `model.pretrained_checkpoint`, and its digest with the one in the checkpoint of `trainer.continue_from`.
    Where the text is not inspected, as in the checks of a smoke run, compares the file that `tokenizer.path`
    or `tokenizer.name` names; for a run that would train a tokenizer, the keys of its text with those in the
    checkpoint. Renamed tokens pass. Also compares the ids of the mask, first, last and padding tokens in the
    `config.json` next to the weights with the ids in the tokenizer's files, where both declare them and the
    embedding has them; warns if only the padding differs: no token attends to it. Does not apply to a run
    that resumes.

    ## Why is this bad?
    Every id denotes another token: the embedding of the weights is then noise. The trainer refuses such
    weights, but only after the queue and the preparation of the text. Other special tokens mean something
    else to the weights, at the start and end of each text and in place of each masked word: the loss still
    falls, but from a worse start.

    ## Example
    ```yaml
    model: {pretrained_checkpoint: runs/first/checkpoints/latest}
    tokenizer: {name: bert-base-uncased}
    ```

    ## Use instead
    ```yaml
    model: {pretrained_checkpoint: runs/first/checkpoints/latest}   # and its tokenizer
    ```
    """
    resume, prepared = facts.resume, None if facts.inspection is None else facts.inspection.prepared
    if resume is None and run.config.trainer.continue_from is not None:
        raise CannotTellError(facts.reason_missing("resume"))
    if resume is not None and resume.is_continued:
        yield from _continued_run_violations(resume, prepared)
    elif not _is_resumed(facts) and initial_weights(run.config) is not None:
        yield from _initial_weights_violations(require_group(facts.data), prepared)


def _initial_weights_violations(data: DataFacts, prepared: PreparedFacts | None) -> Violations:
    folder = _weights_folder(data.weights)
    hint = f"set tokenizer.path to {folder}"
    measured = prepared if prepared is not None and prepared.weights_tokens else data
    if measured.renumbered_tokens:
        share = f"{measured.renumbered_tokens:,} of {measured.weights_tokens:,} token ids"
        message = f"{folder} was trained with another tokenizer: {share} differ or are missing here"
        yield Violation("tokenizer", message, hint)
    elif measured is data and data.tokenizer_differences:
        keys = listed(data.tokenizer_differences, most=2, separator="; ")
        message = f"this run trains its own tokenizer, not the one of {folder}: {keys}"
        yield Violation("tokenizer", message, hint)
    if data.special_tokens:
        yield _special_tokens_violation(data, folder)


def _special_tokens_violation(data: DataFacts, folder: PurePath) -> Violation:
    ids = [f"{role} {there:,}, not {here:,}" for role, (there, here) in data.special_tokens.items()]
    message = f"config.json of {folder} has other special tokens than the tokenizer: {listed(ids)}"
    keys = listed([f"{role}_token_id" for role in data.special_tokens])
    hint = f"put the tokenizer of the weights into {folder}, or correct {keys} in its config.json"
    if PurePath(data.tokenizer) != folder:
        hint = f"set tokenizer.path to {folder}"
    return Violation("tokenizer", message, hint, Severity.WARN if [*data.special_tokens] == ["pad"] else None)


def _continued_run_violations(resume: ResumeFacts, prepared: PreparedFacts | None) -> Violations:
    hint = f"set tokenizer.path to {resume.target}"
    if prepared is None or not resume.tokenizer_digest:
        if resume.tokenizer_differences:
            keys = listed(resume.tokenizer_differences, most=2, separator="; ")
            message = f"this run trains its own tokenizer, not the one of {resume.target}: {keys}"
            yield Violation("tokenizer", message, hint)
    elif resume.tokenizer_digest != (own := prepared.tokenizer_digest):
        message = f"the checkpoint was trained with tokenizer {resume.tokenizer_digest[:12]}, not {own[:12]}"
        yield Violation("tokenizer", message, hint)


@rule(
    "MOD007",
    "rows-beyond-trained-positions",
    severity=Severity.WARN,
    level=Level.HOST,
    needs=("data",),
    inapplicable=why_no_weights,
)
def rows_beyond_trained_positions(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Rows longer than the positions that the initial weights were trained for.

    ## What it does
    Compares the longest row with `max_position_embeddings` in the `config.json` next to
    `model.pretrained_checkpoint`, less the positions before the first token. Positions of the section
    `model` are MOD002; a table of learned positions of another size is DAT001. What is left are rotary
    positions, which exist at any length. A `model.rope_theta` that was raised for these rows passes (see
    `docs/long-context.md`). Does not apply to a run that resumes.

    ## Why is this bad?
    The weights have seen no rotary angle beyond their trained length: quality drops from there on. Training
    on longer rows teaches them (NeoBERT went from 1,024 to 4,096 tokens in a second phase,
    arXiv:2502.19587); a few steps of fine-tuning do not.

    ## Example
    ```yaml
    model: {pretrained_checkpoint: base, max_position_embeddings: 2048}   # base: 512
    dataset: {max_seq_length: 2048}
    ```

    ## Use instead
    ```yaml
    model: {pretrained_checkpoint: base}
    dataset: {max_seq_length: 512}
    ```
    """
    data, longest = require_group(facts.data), plan.max_length.value
    trained = data.weights_positions
    if data.weights_rope_theta and data.weights_rope_theta <= plan.shape.rope_theta:
        return
    if trained and longest > trained and longest <= plan.shape.max_positions and not _is_resumed(facts):
        message = (
            f"rows of {longest:,} tokens exceed the {trained:,} positions of {_weights_folder(data.weights)}"
        )
        hint = f"set dataset.max_seq_length to {trained}"
        if data.weights_rope_theta:
            hint += f", or model.rope_theta to {data.weights_rope_theta:g} to train on longer rows"
        yield Violation("dataset.max_seq_length", message, hint)


@rule(
    "TSK011",
    "random-head",
    severity=Severity.WARN,
    level=Level.HOST,
    needs=("data",),
    tasks=has_labels,
    inapplicable=why_no_weights,
)
def random_head(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A head that starts from random weights, although the initial weights have one of this task.

    ## What it does
    Compares the names and shapes of the head's weights next to `model.pretrained_checkpoint` with the run's
    head, where the architecture in its `config.json` is one of the run's task. A pretrained encoder has no
    such head, and is not meant. Without the head for masked words, task `pretrain` is refused (DAT001), and
    so is `predict` with a folder that lacks its own head. Does not apply to a run that resumes.

    ## Why is this bad?
    Who continues a trained classifier expects its accuracy before the first step. A random head starts at
    chance, and its first steps move the encoder too.

    ## Example
    ```yaml
    task: classification
    model: {pretrained_checkpoint: sentiment}      # of three classes
    classification: {label_names: [bad, good]}
    ```

    ## Use instead
    ```yaml
    task: classification
    model: {pretrained_checkpoint: sentiment}
    classification: {label_names: [bad, fair, good]}
    ```
    """
    data, labels = require_group(facts.data), spec_of(run.config).labels
    if not data.random_head or labels is None or _is_resumed(facts):
        return
    parts = printable(listed(data.random_head))
    folder = _weights_folder(data.weights)
    message = f"the head starts from random values, although {folder} has a head of this task: {parts}"
    key = labels(run.config).setting
    hint = f"set {key} to the labels in its config.json, or model.pretrained_checkpoint to an encoder"
    yield Violation("model.pretrained_checkpoint", message, hint)


def _weights_folder(weights: str) -> PurePath:
    path = PurePath(weights)
    return path.parent if path.suffix == WEIGHTS_SUFFIX else path


def _is_resumed(facts: Facts) -> bool:
    """Return whether the run resumes from its own checkpoint, so that initial weights are not loaded."""
    return facts.resume is not None and facts.resume.is_verified


@rule(
    "TSK014",
    "undeclared-pooling",
    severity=Severity.WARN,
    level=Level.HOST,
    needs=("data",),
    tasks=compares_pairs,
    inapplicable=why_no_weights,
)
def undeclared_pooling(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A pooling that is a default, where the initial weights do not declare it.

    ## What it does
    Reads the pooling in the `config.json` next to `model.pretrained_checkpoint`. Warns if it is another one,
    or none, and the run does not set it. A folder of sentence-transformers with another pooling is refused
    (EXP005). Does not apply to a run that resumes.

    ## Why is this bad?
    A model that was trained with the vector of its first token has no useful mean of all, and the other way
    round: the run would first unlearn what the weights can do. No measurement shows which one is meant.

    ## Example
    ```yaml
    model: {pretrained_checkpoint: bert}     # bert/config.json: "pooling": "cls"
    ```

    ## Use instead
    ```yaml
    model: {pretrained_checkpoint: bert}
    contrastive: {pooling: cls}
    ```
    """
    data = require_group(facts.data)
    if _is_resumed(facts):
        return
    for key, declared in data.undeclared.items():
        if run.origin(key).kind not in ("file", "override"):
            shown = f"{_weights_folder(data.weights)} declares {printable(declared)}"
            message = f"{key} is {flatten(to_dict(run.config))[key]} by default, and {shown}"
            yield Violation(key, message, f"set {key} to the pooling with which the weights were trained")

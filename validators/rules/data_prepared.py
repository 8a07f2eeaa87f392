"""Data rules: the prepared data, and the share of it that each rank reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import sqrt
from typing import TYPE_CHECKING

from neobert.config.corpora import TOKENIZER_OF_THE_IDS, is_on_hub, list_corpora
from neobert.config.schema import RunConfig
from neobert.families.table import named_weights, requested_rows, unsupported_keys
from neobert.plan import Plan
from neobert.plurals import counted, percent
from neobert.printable import printable
from neobert.runfiles.part_faults import UNFINISHED
from neobert.tasks.specs import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Severity, Violation
from validators.rule import CannotTellError, Violations, data_rule, require_group
from validators.rules.model import vocabulary_hint
from validators.tasks import masks_tokens

if TYPE_CHECKING:
    from validators.facts_run import PreparedFacts

PREPARE = "delete the prepared folder and run `neobert-launch data prepare` again"
REPORT = "report this as a bug, with the config"
PACKING = "datacollator.pack_sequences"
MIN_FILL = 0.9
FEW_MICROBATCHES = 10
MAX_LOST = 0.05
DEVIATIONS = 5.0
NO_TEXT, NO_TOKENIZER = "DAT001", "TOK001"
NOTHING_SUPERVISED, AMBIGUOUS = "SFT001", "DAT013"
PLUGIN_FAILED = "PLG002"
"""Code of a preparation error that its rule reports too, if plug-ins were tested before."""
REPORTED_BY_THEIR_RULES = (NOTHING_SUPERVISED, AMBIGUOUS, UNFINISHED)
"""Codes of preparation errors that have rules of their own."""

MIN_RETURNED, MAX_MARKED = 0.99, 0.01
"""Limits on shares of the documents: a text may spell a marker, and a document may contain non-text bytes."""


def require_prepared(facts: Facts) -> PreparedFacts:
    """Return the prepared data. Raises CannotTellError if it could not be prepared, which DAT014 reports."""
    inspection = require_group(facts.inspection)
    if inspection.prepared is None:
        raise CannotTellError(f"data preparation failed: {inspection.refusal.message}")
    return inspection.prepared


@data_rule("DAT014", "unpreparable-text", severity=Severity.FAIL)
def unpreparable_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Data that the trainer would fail to prepare.

    ## What it does
    Prepares the data as the trainer would, in a child process, or opens what was prepared before, and reports
    its error: a file that cannot be decoded, a tokenizer without a mask token, too little text for one
    microbatch, a truncated prepared file. Unknown if the data is on the Hub and the Hub could not be reached,
    as in DAT001.

    ## Why is this bad?
    The trainer would fail in the same way, but only after the queue and the start of all processes.

    ## Example
    ```text
    DAT001: train.tokens has 4,096 bytes, but the manifest states 1,127,372
    ```

    ## Use instead
    ```text
    run `neobert-launch data prepare` once, before the run is queued
    ```
    """
    inspection = require_group(facts.inspection)
    refusal = inspection.refusal
    if facts.data is None and refusal.code in _hub_error_codes(run):
        reason = f"{refusal.message} ({refusal.code}), and the Hub was not checked"
        raise CannotTellError(f"data preparation failed: {reason} ({facts.reason_missing('data')})")
    if refusal.code == PLUGIN_FAILED and facts.plugins is not None and facts.plugins.failures:
        raise CannotTellError(f"data preparation failed: {refusal.message}")
    if refusal.code and refusal.code not in REPORTED_BY_THEIR_RULES:
        key = "plugins" if refusal.code == PLUGIN_FAILED else "dataset"
        yield Violation(key, f"{refusal.code}: {refusal.message}", refusal.hint or PREPARE)


def _hub_error_codes(run: ResolvedRun) -> Iterator[str]:
    """Yield the codes of preparation errors that an unreachable Hub can cause for this run."""
    dataset, tokenizer = run.config.dataset, run.config.tokenizer
    if any(map(is_on_hub, list_corpora(dataset))):
        yield NO_TEXT
    if tokenizer.path is None and tokenizer.name is not None:
        yield NO_TOKENIZER


@data_rule("DAT015", "altered-data", severity=Severity.FAIL)
def altered_data(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Prepared data that has changed since it was prepared.

    ## What it does
    Computes the checksum of every prepared file and compares it with the manifest, from which the
    fingerprint in checkpoints is derived.

    ## Why is this bad?
    After a flipped bit, or a copy that was truncated and padded, the run trains on corrupt text.

    ## Example
    ```text
    train.tokens does not match its checksum in the manifest
    ```

    ## Use instead
    ```text
    delete the prepared folder, then run `neobert-launch data prepare`
    ```
    """
    prepared = require_prepared(facts)
    for name in prepared.altered_files:
        message = f"{prepared.folder}/{name} does not match its checksum in the manifest"
        yield Violation("dataset", message, PREPARE)


@data_rule("DAT002", "foreign-tokens", severity=Severity.FAIL)
def foreign_tokens(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Data that was tokenized by another tokenizer, or token ids outside the vocabulary.

    ## What it does
    Compares the digest of the run's tokenizer with the one recorded in the prepared data, and the largest
    token id with the sizes of the tokenizer and of the model's embedding. Decodes 1,000 documents of the
    `.ds` files of datatrove, which name the path of their tokenizer only, and tokenizes them again: 99 % must
    get the same ids, and at most 1 % may contain a marker such as `[SEP]`, which shows that documents were
    joined.

    ## Why is this bad?
    With another tokenizer every id denotes another token, and the loss still falls. An id outside the
    embedding stops the run at the step that reads it.

    ## Example
    ```text
    the data holds token id 31,000, but the model has 30,592 embedding rows
    ```

    ## Use instead
    ```yaml
    tokenizer:
      path: models/base        # the tokenizer that belongs to the embedding
    ```
    """
    prepared = require_prepared(facts)
    if prepared.tokenizer_digest != prepared.data_tokenizer_digest:
        actual, expected = prepared.data_tokenizer_digest[:12], prepared.tokenizer_digest[:12]
        message = f"the data was tokenized by tokenizer {actual}, but the run uses {expected}"
        yield Violation("tokenizer", message, PREPARE)
    rows = requested_rows(run.config) or prepared.vocab_size
    held = f"the data contains token id {prepared.max_token_id:,}"
    if prepared.max_token_id >= prepared.vocab_size:
        message = f"{held}, but the tokenizer has {prepared.vocab_size:,} tokens"
        yield Violation("tokenizer", message, PREPARE)
    elif prepared.max_token_id >= rows:
        yield Violation(
            "tokenizer", f"{held}, but the model has {rows:,} embedding rows", vocabulary_hint(run.config)
        )
    yield from foreign_ids(prepared.token_ids)


@data_rule("DAT003", "overlapping-shards", severity=Severity.FAIL)
def overlapping_shards(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Ranks that read the same data, or data that no rank reads.

    ## What it does
    Builds the first microbatches of an epoch for every rank, and the same number for a single process: no
    sample may be read twice, none may be missing, and no rank may be empty.

    ## Why is this bad?
    Ranks that read the same data repeat the same work, and one reported epoch is not one epoch.

    ## Example
    ```text
    1,024 samples in 64 microbatches read more than once
    ```

    ## Use instead
    ```text
    the project's own streams: rank i mod N reads microbatch i of the global order
    ```
    """
    prepared = require_prepared(facts)
    if not prepared.sampled_microbatches:
        raise CannotTellError("one epoch has fewer microbatches than ranks, so none were compared")
    scope = f"in {counted(prepared.sampled_microbatches, 'microbatch', 'microbatches')}"
    if prepared.repeated_samples:
        repeated = counted(prepared.repeated_samples, "sample")
        yield Violation("dataset", f"{repeated} {scope} were read more than once", REPORT)
    if prepared.missing_samples:
        missing = counted(prepared.missing_samples, "sample")
        yield Violation("dataset", f"{missing} {scope} were read by no rank", REPORT)
    if prepared.empty_ranks:
        ranks = ", ".join(map(str, prepared.empty_ranks))
        hint = "add text, or lower distributed.nproc_per_node"
        yield Violation("dataset", f"these ranks get no data: {ranks}", hint)


def reason_for_smoke_run(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about wasted text do not apply, if the run is a smoke run; else empty.

    CFG005 keeps smoke runs short.
    """
    return "a smoke run lasts minutes only" if run.is_smoke else ""


@data_rule("DAT005", "wasted-text", severity=Severity.WARN, inapplicable=reason_for_smoke_run)
def wasted_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Microbatches that are partly padding, or documents that lose text.

    ## What it does
    Warns if less than 90 % of a microbatch is text, if truncation loses more than 5 % of the tokens, or if
    more than 5 % of the documents are dropped. Reports the median document length. Warns of labelled rows
    that are left out because they have no text or no label. Smoke runs are exempt, and from the first limit
    models that cannot be packed.

    ## Why is this bad?
    Padding costs as much as text and teaches nothing, and truncated text was paid for when it was collected.

    ## Example
    ```yaml
    datacollator:
      pack_sequences: false
    ```

    ## Use instead
    ```yaml
    datacollator:
      pack_sequences: true
    ```
    """
    prepared = require_prepared(facts)
    if prepared.fill is not None and prepared.fill < MIN_FILL and _can_be_packed(run.config):
        message = (
            f"only {percent(prepared.fill)} of a microbatch is text (at least {MIN_FILL:.0%}); "
            f"{_describe_median_length(prepared)}"
        )
        key, hint = _fill_hint(run, plan, prepared)
        yield Violation(key, message, hint)
    if prepared.truncation_share > MAX_LOST:
        lengths = _describe_median_length(prepared)
        lost = f"truncation loses {percent(prepared.truncation_share)} of the tokens"
        message = f"{lost} (limit {MAX_LOST:.0%}); {lengths}"
        yield Violation("dataset.long_documents", message, _keep_text_hint(run, plan))
    for name, number in prepared.rows_without.items():
        rows = counted(prepared.documents, "training row")
        first = prepared.first_row_without.get(name, "")
        located = f"; the first is {printable(first)}" if first else ""
        message = f"{number:,} of {rows} left out, because they have no {name}{located}"
        yield Violation("dataset", message, f"complete the rows without a {name}, or remove them")
    if prepared.dropped_share > MAX_LOST:
        lengths = _describe_median_length(prepared)
        dropped = f"{percent(prepared.dropped_share)} of the documents are dropped"
        message = f"{dropped} (limit {MAX_LOST:.0%}); {lengths}"
        keep = _keep_text_hint(run, plan)
        shorter = "lower dataset.min_length"
        if "dataset.min_length" in spec_of(run.config).unread_keys:
            hint = keep
        elif run.config.dataset.long_documents == "split":  # only short documents are dropped
            hint = shorter
        else:
            hint = f"{shorter}, or {keep}"
        yield Violation("dataset.min_length", message, hint)


def _can_be_packed(config: RunConfig) -> bool:
    packed = replace(config, datacollator=replace(config.datacollator, pack_sequences=True))
    return all(key != PACKING for key, _, _ in unsupported_keys(packed))


def _fill_hint(run: ResolvedRun, plan: Plan, prepared: PreparedFacts) -> tuple[str, str]:
    """Return the key to change, and the hint, for microbatches that are partly padding."""
    rows = "trainer.per_device_train_batch_size"
    if not run.config.datacollator.pack_sequences:
        return PACKING, f"set {PACKING} to true"
    few = FEW_MICROBATCHES * plan.tokens_per_microbatch.value
    if prepared.num_tokens is not None and prepared.num_tokens < few:
        return rows, f"add text, or lower {rows}: the text fills fewer than {FEW_MICROBATCHES} microbatches"
    return rows, f"raise {rows}: larger microbatches are packed more densely"


def _keep_text_hint(run: ResolvedRun, plan: Plan) -> str:
    if spec_of(run.config).labels_texts or run.config.dataset.long_documents == "split":
        return longer_rows_hint(run, plan)
    return "set dataset.long_documents to split"


def longer_rows_hint(run: ResolvedRun, plan: Plan) -> str:
    """Return the hint for truncated texts: longer rows, or weights that were trained on longer rows."""
    most = plan.shape.max_positions
    if not named_weights(run.config)[0] or plan.max_length.value < most:
        return "raise dataset.max_seq_length"
    return f"start from a model of more than {most:,} positions, and raise dataset.max_seq_length"


def _describe_median_length(prepared: PreparedFacts) -> str:
    """Return a clause with the upper bound of the median document length."""
    total, seen = sum(count for _, count in prepared.histogram), 0
    for longest, count in prepared.histogram:
        seen += count
        if 2 * seen >= total:
            return f"half of the documents have at most {longest:,} tokens"
    return "the data contains no documents"


def why_masks_are_not_counted(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why targets are not compared with the masking rule; empty if they are."""
    return "PLG002 tests the masking of the plug-in" if run.config.plugins.masking else ""


@data_rule(
    "NUM006",
    "wrong-targets",
    tasks=masks_tokens,
    severity=Severity.FAIL,
    inapplicable=why_masks_are_not_counted,
)
def wrong_targets(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Masked tokens that are too many or too few, are padding or special tokens, or have wrong labels.

    ## What it does
    Counts the masked tokens of the first microbatches. Their share must equal `datacollator.mlm_probability`
    to within five standard deviations. None may be padding or a special token. Each label, and each token
    that was left unchanged, must be the token of the text.

    ## Why is this bad?
    A loss over padding falls fast and means nothing, and a run with an undeclared share is a different
    experiment.

    ## Example
    ```text
    15.1 % of 1,000,000 tokens are masked, but datacollator.mlm_probability is 20 %
    ```

    ## Use instead
    ```yaml
    datacollator:
      mlm_probability: 0.2
    ```
    """
    prepared, declared = require_prepared(facts), run.config.datacollator.mlm_probability
    if not prepared.num_maskable:
        raise CannotTellError("no token of the sample can be masked")
    allowed = DEVIATIONS * sqrt(declared * (1 - declared) / prepared.num_maskable)
    if abs(prepared.masked_share - declared) > allowed:
        share = f"{prepared.masked_share:.2%} of {prepared.num_maskable:,} tokens are masked"
        message = f"{share}, but datacollator.mlm_probability is {declared:.2%}"
        yield Violation("datacollator.mlm_probability", message, REPORT)
    for fault in _target_faults(prepared):
        yield Violation("datacollator", fault, REPORT)


def _target_faults(prepared: PreparedFacts) -> Iterator[str]:
    counts = (
        (prepared.special_targets, "masked tokens are special tokens"),
        (prepared.padding_targets, "masked tokens are padding"),
        (prepared.wrong_labels, "tokens or labels differ from the text"),
    )
    return (f"{count:,} {problem}" for count, problem in counts if count)


def foreign_ids(counts: Mapping[str, int]) -> Violations:
    """Yield violations for token ids that another tokenizer produced or that include markers."""
    if not counts:
        return
    total, returned, marked = counts["documents"], counts["returned"], counts["marked"]
    if returned < MIN_RETURNED * total:
        same = f"{returned:,} of {total:,} documents have the same ids after decoding and tokenizing"
        yield Violation("tokenizer", f"{same} (at least {MIN_RETURNED:.0%})", TOKENIZER_OF_THE_IDS)
    elif marked > MAX_MARKED * total:
        message = f"{marked:,} of {total:,} documents contain special tokens of the tokenizer inside the text"
        hint = "set dataset.path to .ds files that were written without shuffle_chunk_size"
        yield Violation("dataset.path", f"{message} (at most {MAX_MARKED:.0%})", hint)

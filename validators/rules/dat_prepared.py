"""DAT and NUM006: the prepared text, read through, and what each rank gets of it."""

from __future__ import annotations

from collections.abc import Iterator
from math import sqrt

from neobert.families.table import requested_rows
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.facts_run import PreparedFacts
from validators.finding import Level, Severity, Violation
from validators.rule import CannotTellError, Violations, rule

PREPARE = "remove the folder and prepare the text again: `neobert-launch data prepare`"
HARMLESS_EPOCHS, MOST_EPOCHS = 4.0, 40.0
LEAST_FILL = 0.9
MOST_LOST = 0.05
DEVIATIONS = 5.0
NO_TEXT, NO_TOKENIZER = "DAT001", "TOK001"
BUILTIN = "builtin:"


def prepared_of(facts: Facts) -> PreparedFacts:
    """The prepared text. Raises where its preparation was refused, which is DAT014's to fail."""
    inspection = facts.inspection
    assert inspection is not None
    if inspection.prepared is None:
        raise CannotTellError(f"the text could not be prepared: {inspection.refusal.message}")
    return inspection.prepared


def _sampled(facts: Facts) -> PreparedFacts:
    found = prepared_of(facts)
    if not found.sampled_microbatches:
        raise CannotTellError("an epoch does not hold one microbatch for every rank, so none was compared")
    return found


def _reads_a_stream(run: ResolvedRun, plan: Plan) -> str:
    return "the text is a stream, whose length nobody knows" if run.config.dataset.streaming else ""


@rule("DAT014", "unpreparable-text", severity=Severity.FAIL, level=Level.DATA, needs=("inspection",))
def unpreparable_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Text that the trainer would refuse to prepare.

    ## What it does
    Prepares the text as the trainer would, in a child, or opens what was prepared before, and hands on what
    that refuses: a file that cannot be decoded, a tokenizer without a mask, too little text for one
    microbatch, a prepared file that lost its end. What the hub holds and nobody could ask it for is unknown,
    here as in DAT001.

    ## Why is this bad?
    The trainer refuses the same, after the queue and the start of every process.

    ## Example
    ```text
    DAT001: train.tokens has 4,096 bytes; the manifest says 1,127,372
    ```

    ## Use instead
    ```text
    neobert-launch data prepare, once, before the run is queued
    ```
    """
    inspection = facts.inspection
    assert inspection is not None
    refusal = inspection.refusal
    if facts.data is None and refusal.code in _codes_of_the_hub(run):
        told = f"{refusal.code}: {refusal.message}; data: {facts.reason_missing('data')}"
        raise CannotTellError(f"the text could not be prepared: {told}")
    if refusal.code:
        yield Violation("dataset", f"{refusal.code}: {refusal.message}", refusal.hint or PREPARE)


def _codes_of_the_hub(run: ResolvedRun) -> Iterator[str]:
    """What a run is refused with that takes its text or its tokenizer from the hub and cannot get it."""
    dataset, tokenizer = run.config.dataset, run.config.tokenizer
    if dataset.path is None and not (dataset.name or BUILTIN).startswith(BUILTIN):
        yield NO_TEXT
    if tokenizer.path is None and tokenizer.name is not None:
        yield NO_TOKENIZER


@rule("DAT015", "altered-data", severity=Severity.FAIL, level=Level.DATA, needs=("inspection",))
def altered_data(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Prepared text that is no longer what was prepared.

    ## What it does
    Sums up every file of the prepared text and compares with the sums in its manifest, from which the
    fingerprint that checkpoints carry is made.

    ## Why is this bad?
    A disk that flipped a bit, or a copy that was cut short and padded, trains on text that nobody wrote.

    ## Example
    ```text
    train.tokens is not what the manifest says
    ```

    ## Use instead
    ```text
    rm -r the prepared folder; neobert-launch data prepare
    ```
    """
    found = prepared_of(facts)
    for name in found.altered_files:
        yield Violation("dataset", f"{found.folder}/{name} is not what the manifest says", PREPARE)


@rule("DAT002", "foreign-tokens", severity=Severity.FAIL, level=Level.DATA, needs=("inspection",))
def foreign_tokens(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Text that was tokenised by another tokenizer, or ids that the model has no row for.

    ## What it does
    Compares the digest of the run's tokenizer with the one that the prepared text names, and the largest id
    in the text with the vocabulary.

    ## Why is this bad?
    With another tokenizer every id means another word, and the loss still falls. An id beyond the embedding
    stops the run at the step that meets it.

    ## Example
    ```text
    the text holds token id 31,000, and the vocabulary has 30,592
    ```

    ## Use instead
    ```text
    neobert-launch data prepare, with the tokenizer that the run names
    ```
    """
    found = prepared_of(facts)
    if found.tokenizer_digest != found.data_tokenizer_digest:
        have, want = found.data_tokenizer_digest[:12], found.tokenizer_digest[:12]
        yield Violation(
            "tokenizer", f"the text was made by tokenizer {have}, and the run has {want}", PREPARE
        )
    rows = min(found.vocab_size, requested_rows(run.config) or found.vocab_size)
    if found.max_token_id >= rows:
        message = f"the text holds token id {found.max_token_id:,}, and the vocabulary has {rows:,}"
        yield Violation("tokenizer", message, PREPARE)


@rule("DAT003", "overlapping-shards", severity=Severity.FAIL, level=Level.DATA, needs=("inspection",))
def overlapping_shards(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Ranks that read the same text, or text that no rank reads.

    ## What it does
    Builds the first microbatches of an epoch for every rank, and the same number for one process alone: no
    sample may come twice, none may be missing, and no rank may go without.

    ## Why is this bad?
    Ranks that read the same text do the same work twice, and the epoch that the metrics tell is not one.

    ## Example
    ```text
    1,024 samples of 64 microbatches were read more than once
    ```

    ## Use instead
    ```text
    the project's own streams: microbatch i of the global order is rank i mod N's
    ```
    """
    found, hint = _sampled(facts), "report it with the config: the order of the text is the project's to keep"
    of = f"of {found.sampled_microbatches} microbatches"
    if found.repeated_samples:
        yield Violation("dataset", f"{found.repeated_samples:,} samples {of} were read more than once", hint)
    if found.missing_samples:
        yield Violation("dataset", f"{found.missing_samples:,} samples {of} were read by no rank", hint)
    if found.empty_ranks:
        ranks = ", ".join(map(str, found.empty_ranks))
        yield Violation("dataset", f"ranks without text: {ranks}", "add text, or use fewer processes")


@rule(
    "DAT004",
    "too-little-text",
    severity=Severity.FAIL,
    level=Level.DATA,
    needs=("inspection",),
    production_only=True,
    inapplicable=_reads_a_stream,
)
def too_little_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Too little text for the run's steps, which then read it too often.

    ## What it does
    Divides the tokens of all steps by those of the training text. Above 4 passes it warns: up to there
    repeated text is worth nearly as much as new (Muennighoff et al., arXiv:2305.16264). Above 40, which
    is how often BERT read its text (Devlin et al., arXiv:1810.04805), it fails.

    ## Why is this bad?
    The steps that were paid for teach the text by heart instead of the language.

    ## Example
    ```text
    the run reads the text 131.0 times
    ```

    ## Use instead
    ```yaml
    trainer:
      max_steps: 20000
    ```
    """
    epochs = prepared_of(facts).epochs
    if epochs is None:
        raise CannotTellError("the length of the text is not known")
    if epochs > HARMLESS_EPOCHS:
        yield Violation(
            "trainer.max_steps",
            f"the run reads the text {epochs:,.1f} times",
            "train on more text, or for fewer steps",
            None if epochs > MOST_EPOCHS else Severity.WARN,
        )


@rule("DAT005", "wasted-text", severity=Severity.WARN, level=Level.DATA, needs=("inspection",))
def wasted_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Microbatches with holes, or documents that lose their ends.

    ## What it does
    Warns where less than nine tenths of a microbatch are text, and where truncating loses more than a
    twentieth of the tokens, or leaving out a twentieth of the documents. It names how long most are.

    ## Why is this bad?
    Padding costs as much as text and teaches nothing; what is cut off was paid for when it was collected.

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
    found = prepared_of(facts)
    if found.fill is not None and found.fill < LEAST_FILL:
        message = f"{found.fill:.1%} of a microbatch are text; {_lengths(found)}"
        yield Violation("datacollator.pack_sequences", message, "pack the documents")
    if found.truncation_share > MOST_LOST:
        message = f"truncating loses {found.truncation_share:.1%} of the tokens; {_lengths(found)}"
        yield Violation("dataset.long_documents", message, "set dataset.long_documents to split")
    if found.dropped_share > MOST_LOST:
        message = f"{found.dropped_share:.1%} of the documents are left out; {_lengths(found)}"
        yield Violation("dataset.min_length", message, "lower dataset.min_length, or split long documents")


def _lengths(found: PreparedFacts) -> str:
    """The bin that holds the median document."""
    total, seen = sum(count for _, count in found.histogram), 0
    for longest, count in found.histogram:
        seen += count
        if 2 * seen >= total:
            return f"half of the documents have at most {longest:,} tokens"
    return "there are no documents"


@rule("NUM006", "wrong-targets", severity=Severity.FAIL, level=Level.DATA, needs=("inspection",))
def wrong_targets(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """Targets that are too many or too few, that are padding or markers, or not the text's own tokens.

    ## What it does
    Counts the predicted tokens of the first microbatches. Their share has to be
    `datacollator.mlm_probability` to within five standard deviations of that many draws; none may be padding
    or a special token; each label, and each token that was left alone, has to be what the text says.

    ## Why is this bad?
    A loss over padding falls fast and means nothing, and a share that is not the declared one is another
    experiment.

    ## Example
    ```text
    15.1 % of 1,000,000 tokens are predicted, and 20 % are declared
    ```

    ## Use instead
    ```yaml
    datacollator:
      mlm_probability: 0.2
    ```
    """
    found, declared = prepared_of(facts), run.config.datacollator.mlm_probability
    if not found.num_maskable:
        raise CannotTellError("no token of the sample may be masked")
    allowed = DEVIATIONS * sqrt(declared * (1 - declared) / found.num_maskable)
    if abs(found.masked_share - declared) > allowed:
        share = f"{found.masked_share:.2%} of {found.num_maskable:,} tokens are predicted"
        message = f"{share}, and {declared:.2%} are declared"
        yield Violation("datacollator.mlm_probability", message, "report it with the config")
    for fault in _faults(found):
        yield Violation("datacollator", fault, "report it with the config")


def _faults(found: PreparedFacts) -> Iterator[str]:
    counts = (
        (found.special_targets, "predicted tokens are special ones"),
        (found.padding_targets, "predicted tokens are padding"),
        (found.wrong_labels, "tokens or labels are not what the text says"),
    )
    return (f"{count:,} {what}" for count, what in counts if count)

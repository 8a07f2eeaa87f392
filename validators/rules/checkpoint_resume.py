"""Checkpoint rules: the checkpoint that a run resumes or continues from."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import PurePath
from shlex import quote
from typing import TYPE_CHECKING

from neobert.config.removed_keys import removal_hint
from neobert.families.table import initial_weights
from neobert.plan import Plan
from neobert.plurals import listed
from neobert.runfiles.run_dir import AUTO, NEVER
from profiles.registry import ResolvedRun
from validators.facts import FOREIGN_TREE, PLUGGED_SOURCE, Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, require_group, rule

if TYPE_CHECKING:
    from validators.facts_host import ResumeFacts

RESUME, CONTINUE = "trainer.resume_from_checkpoint", "trainer.continue_from"
SOURCE_TEXT = "trainer.eval_source_text"
NOT_BY_THE_USER = ("default", "profile", "run")
"""Kinds of origins of values that the user did not set; `run` values were recorded when the run began."""


def why_not_resumed(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules about resuming do not apply; empty if the run may resume."""
    trainer = run.config.trainer
    starts_fresh = trainer.resume_from_checkpoint == NEVER and trainer.continue_from is None
    return "the run does not resume" if starts_fresh else ""


def why_no_checkpoint(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why the run reads no checkpoint; empty if it may resume or has initial weights."""
    return why_not_resumed(run, plan) if initial_weights(run.config) is None else ""


resume_rule = partial(rule, level=Level.HOST, needs=("resume",))


@resume_rule(
    "CKP007", "broken-resume-target", severity=Severity.FAIL, waivable=False, inapplicable=why_no_checkpoint
)
def broken_resume_target(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A checkpoint to start from that is missing, damaged, from another model, or past the last step.

    ## What it does
    Requires that the named checkpoint exists, that its manifest verifies, that model and data match the run
    (model and optimizer, for `trainer.continue_from`), and that its step is below `trainer.max_steps`. `auto`
    may find no checkpoint and start from scratch, but not if all checkpoints are damaged. Warns about newer
    checkpoints that were skipped because they do not verify. With `trainer.eval_source_text`, the text of a
    continued run has to exist. Where `model.pretrained_checkpoint` is in a
    checkpoint folder, its weights, config and tokenizer have to match the manifest; for a run that resumes
    from its own checkpoint, that is a warning only: they are not used.

    ## Why is this bad?
    A trainer that starts from scratch when its checkpoint is missing discards the run that it was supposed
    to resume.

    ## Example
    ```text
    neobert-launch train --resume runs/first/checkpoints/40000   # a folder without a manifest
    ```

    ## Use instead
    ```text
    neobert-launch train --resume auto
    ```
    """
    resume = require_group(facts.resume)
    data = facts.data
    if data is not None and data.weights_damage:
        message = f"{data.weights}: {data.weights_damage}"
        severity = Severity.WARN if resume.is_verified else None
        yield Violation("model.pretrained_checkpoint", message, data.weights_hint, severity)
    if not why_not_resumed(run, plan):
        yield from _resume_violations(run, resume)


def _resume_violations(run: ResolvedRun, resume: ResumeFacts) -> Violations:
    """Yield the reasons why the run cannot resume or continue from its checkpoint, or should not."""
    path = CONTINUE if resume.is_continued else RESUME
    if not resume.exists:
        if resume.selector != AUTO or resume.is_continued:
            yield Violation(path, f"{resume.target or resume.selector} does not exist", _resume_hint(resume))
        return
    if not resume.is_verified:
        yield Violation(path, f"{resume.target}: {resume.reason}", _resume_hint(resume))
        return
    if resume.structural_differences:
        differences = "; ".join(resume.structural_differences)
        message = f"{resume.target} belongs to a different run: {differences}"
        key = differing_key(run, resume.structural_differences, path)
        yield Violation(key, message, _different_run_hint(resume))
    max_steps = run.config.trainer.max_steps
    if resume.step > max_steps or (resume.step == max_steps and not resume.lacks_line):
        yield Violation(
            "trainer.max_steps",
            f"{resume.target} is at step {resume.step:,}, trainer.max_steps is {max_steps:,}",
            _past_end_hint(resume),
        )
    if resume.is_continued and run.config.trainer.eval_source_text:
        yield from _source_text_violations(resume)
    for skipped in resume.passed_by:
        message = f"checkpoint {skipped}; the run resumes from step {resume.step:,} and repeats those steps"
        yield Violation(
            path, message, "to keep those steps, restore the checkpoint from a copy", Severity.WARN
        )


def keys_in_differences(differences: Sequence[str]) -> list[str]:
    """Return the key of each difference, which is the text before its first colon."""
    return [each.partition(":")[0] for each in differences]


def differing_key(run: ResolvedRun, differences: Sequence[str], otherwise: str) -> str:
    """Return the first differing key that the user set, else the first differing key, else `otherwise`."""
    keys = [key.partition(" ")[0] for key in keys_in_differences(differences)]
    own = (key for key in keys if run.origin(key).kind not in NOT_BY_THE_USER)
    return next(own, next(iter(keys), otherwise))


def _source_text_violations(resume: ResumeFacts) -> Violations:
    if resume.source_reason:
        message = f"the source text cannot be read: {resume.source_reason}"
        hint = f"set {SOURCE_TEXT} to false"
        if resume.source_reason != PLUGGED_SOURCE:
            start = "a relative path starts at the working directory of their run"
            hint = f"restore the source text and its tokenizer ({start}), or {hint}"
        yield Violation(CONTINUE, message, hint)


def _different_run_hint(resume: ResumeFacts) -> str:
    """Return the hint for a checkpoint of another model, data or optimizer.

    Starting from the weights alone is possible with another optimizer, but not with another model. A key that
    was removed cannot be restored.
    """
    keys = keys_in_differences(resume.structural_differences)
    restored = removal_hint(keys) or f"restore {listed(keys)}"
    if not resume.is_continued:
        return f"{restored}, or start a new run in another trainer.output_dir"
    if any(each.startswith("model.") for each in resume.structural_differences):
        return restored
    return f"{restored}, or remove {CONTINUE}, and {hint_to_start_from(resume.target)}"


def _past_end_hint(resume: ResumeFacts) -> str:
    """Return the hint for a checkpoint at or after trainer.max_steps.

    Only a checkpoint in the run's own folder shows that the run has ended.
    """
    if resume.is_continued:
        return "raise trainer.max_steps, which counts the steps of the continued run too"
    if resume.is_elsewhere:
        return "raise trainer.max_steps, or resume from an earlier checkpoint"
    return (
        "this run has ended: raise trainer.max_steps to continue it, or set another trainer.output_dir for a "
        "new run"
    )


def _resume_hint(resume: ResumeFacts) -> str:
    """Return the hint for a missing or damaged checkpoint, with a usable checkpoint if there is one."""
    if resume.exists and FOREIGN_TREE in PurePath(resume.target).parts:
        return f"set {RESUME} to never, and {hint_to_start_from(resume.target)}"
    if resume.way_out:
        return resume.way_out
    if resume.is_continued:
        another = f", such as {quote(resume.alternative)}" if resume.alternative else ""
        return f"set {CONTINUE} to a run directory or a checkpoint folder{another}"
    if resume.alternative:
        return f"resume from the newest verified checkpoint: --resume {quote(resume.alternative)}"
    if not resume.exists:
        return f"set {RESUME} to an existing checkpoint folder, like RUN/checkpoints/1000"
    if resume.selector == AUTO:
        return "restore a checkpoint from a copy, fix its permissions, or set another trainer.output_dir"
    return (
        f"set {RESUME} to a checkpoint folder, like RUN/checkpoints/1000, restore this one from a copy, or "
        "fix its permissions"
    )


def hint_to_start_from(checkpoint: str) -> str:
    """Return the hint to start a new run from the weights of a checkpoint."""
    return f"set model.pretrained_checkpoint to {checkpoint} to start from its weights"


@resume_rule("CKP016", "resumed-with-other-numerics", severity=Severity.WARN, inapplicable=why_not_resumed)
def resumed_with_other_numerics(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that resumes from a checkpoint that was trained with other settings.

    ## What it does
    Lists the keys of optimizer, precision, regularization and initial weights whose values differ from those
    in the checkpoint. SCH005 compares the learning rate; other data or another model are rejected (CKP007).

    ## Why is this bad?
    With `trainer.resume_from_checkpoint: auto`, a run file that was edited for a new run continues the old
    one, with its weights and its history: the result is neither of the two experiments.

    ## Example
    ```text
    optimizer.weight_decay: 0.1 in the checkpoint, 0.01 in this run
    ```

    ## Use instead
    ```yaml
    trainer:
      output_dir: runs/second   # the new settings from the first step
    ```
    """
    resume = require_group(facts.resume)
    if resume.numeric_differences and not resume.structural_differences:  # else CKP007 refuses the run
        yield Violation(
            differing_key(run, resume.numeric_differences, RESUME),
            f"{resume.target} was trained with other settings: {'; '.join(resume.numeric_differences)}",
            f"restore {listed(keys_in_differences(resume.numeric_differences))}, or set another "
            "trainer.output_dir for a new run",
        )


@rule(
    "CKP017",
    "resumed-on-other-text",
    severity=Severity.FAIL,
    level=Level.DATA,
    needs=("resume", "inspection"),
    inapplicable=why_not_resumed,
)
def resumed_on_other_text(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that resumes on text or with a tokenizer that has changed since its checkpoint.

    ## What it does
    Compares the digests of the prepared text and of its tokenizer with those in the checkpoint. Does not
    apply to a run that continues on other text (`trainer.continue_from`): DAT029 compares its tokenizer.

    ## Why is this bad?
    The position in the data belongs to the earlier text: documents would be skipped or repeated. The trainer
    refuses the checkpoint, but only after the queue.

    ## Example
    ```text
    the text has changed since runs/first/checkpoints/800: a line was appended to dataset.path
    ```

    ## Use instead
    ```yaml
    trainer:
      output_dir: runs/second
      continue_from: runs/first/checkpoints/800   # the new text, from its first document
    ```
    """
    resume, prepared = require_group(facts.resume), require_group(facts.inspection).prepared
    if prepared is None or not resume.is_verified or resume.is_continued:
        return
    saved = {"dataset": resume.data_fingerprint, "tokenizer": resume.tokenizer_digest}
    current = {"dataset": prepared.fingerprint, "tokenizer": prepared.tokenizer_digest}
    changed = [name for name, digest in saved.items() if digest and digest != current[name]]
    if changed:
        what = {"dataset": "the text", "tokenizer": "the tokenizer"}[changed[0]]
        message = f"{what} has changed since {resume.target} was saved"
        hint = f"restore {what}, or set {CONTINUE} to {resume.target} in another trainer.output_dir"
        yield Violation(changed[0], message, hint)


def why_not_continued(run: ResolvedRun, plan: Plan) -> str:
    """Return the reason why rules for trainer.continue_from do not apply; empty if the run sets it."""
    return "the run does not continue another run" if run.config.trainer.continue_from is None else ""


@resume_rule(
    "CKP012", "continued-outside-the-plateau", severity=Severity.FAIL, inapplicable=why_not_continued
)
def continued_outside_the_plateau(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A run that continues another one from its warm-up or its decay.

    ## What it does
    Compares the step of the checkpoint in `trainer.continue_from` with the plateau of that run's schedule:
    from the end of the warm-up to the beginning of the decay. Also requires `trainer.max_epochs` to be null,
    because it counts from the first step of the weights.

    ## Why is this bad?
    During the decay a run converges on its text. Weights that have converged on the old text learn little of
    the new text at the low learning rate that remains.

    ## Example
    ```yaml
    trainer:
      continue_from: runs/first/checkpoints/1000   # the decay began at step 800
    ```

    ## Use instead
    ```yaml
    trainer:
      continue_from: runs/first/checkpoints/800
    ```
    """
    resume = require_group(facts.resume)
    if not (resume.is_continued and resume.is_verified):
        return
    if (
        resume.stable_steps is not None
        and not resume.stable_steps[0] <= resume.step <= resume.stable_steps[1]
    ):
        first, last = resume.stable_steps
        if first < last:
            message = f"{resume.target} is outside the plateau of its run (steps {first:,} to {last:,})"
            hint = f"set {CONTINUE} to a checkpoint of the plateau (see trainer.save_keep_every)"
        else:
            message = (
                f"the run of {resume.target} has no plateau: the learning rate decays from step {last:,}"
            )
            hint = f"remove {CONTINUE}, and {hint_to_start_from(resume.target)}"
        yield Violation(CONTINUE, message, hint)
    if run.config.trainer.max_epochs is not None:
        message = "trainer.max_epochs counts the steps before the checkpoint too, which read other text"
        yield Violation(
            "trainer.max_epochs", message, "set trainer.max_epochs to null; trainer.max_steps ends the run"
        )

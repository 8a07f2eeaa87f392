"""CFG, the part about keys that another key has switched off."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.config import RunConfig
from neobert.plan import Plan
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.dat_prepared import BUILTIN


@rule("CFG013", "idle-key", severity=Severity.WARN, level=Level.STATIC)
def idle_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key that has no effect, because another key has switched it off.

    ## What it does
    Names `datacollator.pad_to_multiple_of` where documents are packed, a kernel of packed documents in
    `model.attn_backend` where they are not,
    `trainer.gradient_checkpointing_every_n` where nothing is recomputed, `trainer.greater_is_better`
    without a metric for the best checkpoint, `dataset.revision` where the text is not a data set of the
    hub, and `dataset.validation_split` where `dataset.eval_samples` is used instead.

    ## Why is this bad?
    Whoever wrote the key believes that it works, and reads the results that way.

    ## Example
    ```yaml
    dataset:
      eval_samples: 256
      validation_split: 0.02
    ```

    ## Use instead
    ```yaml
    dataset:
      eval_samples: null
      validation_split: 0.02
    ```
    """
    for path, because, mend in _idle(run.config):
        yield Violation(path, f"{path} has no effect: {because}", f"{mend}, or set {path} to its default")


def _idle(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """The key, what switches it off, and the edit that switches it on."""
    collator, dataset, trainer = config.datacollator, config.dataset, config.trainer
    if collator.pad_to_multiple_of is not None and collator.pack_sequences:
        path = "datacollator.pad_to_multiple_of"
        yield path, "packed documents are not padded", "set datacollator.pack_sequences to false"
    if config.model.attn_backend not in ("auto", "sdpa") and not collator.pack_sequences:
        path = "model.attn_backend"
        yield path, "padded rows go through sdpa", "set datacollator.pack_sequences to true"
    if trainer.gradient_checkpointing_every_n > 1 and not trainer.gradient_checkpointing:
        path = "trainer.gradient_checkpointing_every_n"
        yield path, "no block is recomputed", "set trainer.gradient_checkpointing to true"
    if trainer.greater_is_better is not None and trainer.metric_for_best_model is None:
        path = "trainer.greater_is_better"
        yield path, "no checkpoint is told to be the best", "set trainer.metric_for_best_model"
    is_on_hub = dataset.name is not None and not dataset.name.startswith(BUILTIN)
    if dataset.revision is not None and not is_on_hub:
        yield "dataset.revision", "the text is not a data set of the hub", "set dataset.name"
    if dataset.validation_split is not None and dataset.eval_samples is not None:
        path = "dataset.validation_split"
        yield path, "dataset.eval_samples is used instead", "set dataset.eval_samples to null"

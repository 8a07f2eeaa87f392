"""CFG: keys that another key makes ineffective."""

from __future__ import annotations

from collections.abc import Iterator
from operator import attrgetter

from neobert.config import RunConfig
from neobert.families.table import requested_kernels
from neobert.plan import Plan
from neobert.tasks import spec_of
from profiles.registry import ResolvedRun
from validators.facts import Facts
from validators.finding import Level, Severity, Violation
from validators.rule import Violations, rule
from validators.rules.dat_prepared import BUILTIN

DEFAULTS = RunConfig()


@rule("CFG013", "idle-key", severity=Severity.WARN, level=Level.STATIC)
def idle_key(run: ResolvedRun, plan: Plan, facts: Facts) -> Violations:
    """A key without effect, because of another key.

    ## What it does
    Reports `datacollator.pad_to_multiple_of` with packing, a packed-attention kernel in
    `model.attn_backend` without packing, `trainer.gradient_checkpointing_every_n` without recomputation,
    `trainer.greater_is_better` without `trainer.metric_for_best_model`, `dataset.revision` if the data does
    not come from the Hub, `dataset.validation_split` if `dataset.eval_samples` is set, and keys that the
    task does not read.

    ## Why is this bad?
    The author of the key believes that it works, and interprets the results that way.

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
    for path, reason, fix in _ineffective(run.config):
        yield Violation(path, f"{path} has no effect: {reason}", f"{fix}, or set {path} to its default")
    for path, reason in spec_of(run.config).unread.items():
        if run.origin(path).kind != "default" and attrgetter(path)(run.config) != attrgetter(path)(DEFAULTS):
            message = f"{path} has no effect in task {run.config.task}: {reason}"
            yield Violation(path, message, f"remove {path}")


def _ineffective(config: RunConfig) -> Iterator[tuple[str, str, str]]:
    """Yield (key, why it has no effect, the edit that gives it one)."""
    collator, dataset, trainer = config.datacollator, config.dataset, config.trainer
    if collator.pad_to_multiple_of is not None and collator.pack_sequences:
        path = "datacollator.pad_to_multiple_of"
        yield path, "packed documents are not padded", "set datacollator.pack_sequences to false"
    if requested_kernels(config)[1] not in ("auto", "sdpa", "eager") and not collator.pack_sequences:
        path = "model.attn_backend"
        yield path, "padded rows use sdpa", "set datacollator.pack_sequences to true"
    if trainer.gradient_checkpointing_every_n > 1 and not trainer.gradient_checkpointing:
        path = "trainer.gradient_checkpointing_every_n"
        yield path, "trainer.gradient_checkpointing is false", "set trainer.gradient_checkpointing to true"
    if trainer.greater_is_better is not None and trainer.metric_for_best_model is None:
        path = "trainer.greater_is_better"
        yield path, "trainer.metric_for_best_model is not set", "set trainer.metric_for_best_model"
    is_on_hub = dataset.name is not None and not dataset.name.startswith(BUILTIN)
    if dataset.revision is not None and not is_on_hub:
        yield "dataset.revision", "dataset.name is not a data set of the Hub", "set dataset.name"
    if dataset.validation_split is not None and dataset.eval_samples is not None:
        path = "dataset.validation_split"
        yield path, "dataset.eval_samples is set and takes precedence", "set dataset.eval_samples to null"

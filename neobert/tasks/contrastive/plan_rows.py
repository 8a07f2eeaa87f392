"""Pooling and prompts of contrastive training, as `plan` shows them. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.printable import printable
from neobert.tasks.contrastive.declared import POOLING, undeclared
from neobert.tasks.contrastive.section import CONTRASTIVE
from neobert.tasks.spec import PlanRow


def plan_rows(config: RunConfig) -> Iterator[PlanRow]:
    """Yield pooling and prompts, and where the initial weights declare another pooling or none."""
    section = CONTRASTIVE.of(config)
    yield PlanRow("pooling", f"{section.pooling}{_other_pooling(config)}", POOLING)
    prompts = {"query": section.query_prompt, "document": section.document_prompt}
    shown = ", ".join(f"{name} {repr(text) if text else 'none'}" for name, text in prompts.items())
    yield PlanRow("prompts", shown, "contrastive.query_prompt, contrastive.document_prompt")
    if weight := section.masked_lm_weight:
        share = config.datacollator.mlm_probability
        shown = f"{weight:g} x the masked-LM loss, on {share:.0%} of the tokens"
        yield PlanRow("mixed in", shown, "contrastive.masked_lm_weight")


def _other_pooling(config: RunConfig) -> str:
    """Return what the weights declare instead; empty for random weights and an unreadable folder."""
    from neobert.runfiles.model_folder import folder_of_weights  # `lint` reads no checkpoint

    if (place := config.model.pretrained_checkpoint) is not None:
        # `preflight` reports the errors of the folder.
        with suppress(ProjectError):
            found = undeclared(config, folder_of_weights(Path(place)))
            return "".join(f" (the weights declare {printable(value)})" for value in found.values())
    return ""

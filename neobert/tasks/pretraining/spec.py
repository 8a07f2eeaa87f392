"""Masked-language-model pretraining, without torch."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import text_rows
from neobert.families.shape import ModelShape
from neobert.tasks.pretraining.section import PRETRAINING
from neobert.tasks.spec import Head, TaskSpec, reports_token_metric


def masked_lm_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: vocabulary logits at the masked tokens, or at all tokens."""
    is_masked_only = config.trainer.masked_logits_only_loss
    return Head(
        parameters=shape.parameters.decoder,
        weights=shape.decoder_products,
        width=shape.vocab_size,
        scored_share=config.datacollator.mlm_probability if is_masked_only else 1.0,
    )


SPEC = TaskSpec(
    keys=PRETRAINING,
    summary="masked-language-model pretraining",
    auto_class="AutoModelForMaskedLM",
    predicts="masked",
    roles=("mask_token",),
    head=masked_lm_head,
    rows=lambda config: text_rows(config.dataset),
    reports=reports_token_metric,
)

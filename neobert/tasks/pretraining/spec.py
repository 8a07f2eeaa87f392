"""Masked-language-model pretraining, without torch."""

from __future__ import annotations

from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.tasks.spec import Head, Metric, TaskSpec

METRICS = (
    Metric("eval/loss", is_higher_better=False),
    Metric("eval/accuracy", is_higher_better=True, is_share=True),
    Metric("eval/perplexity", is_higher_better=False),
)


def masked_lm_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the decoder: V logits at the masked tokens, or at all of them."""
    masked = config.datacollator.mlm_probability
    return Head(
        parameters=shape.parameters.decoder,
        weights=shape.decoder_products,
        width=shape.vocab_size,
        scored_share=masked if config.trainer.masked_logits_only_loss else 1.0,
    )


PRETRAINING = TaskSpec(
    name="pretrain",
    summary="masked-language-model pretraining",
    module="neobert.tasks.pretraining.task",
    examples="neobert.tasks.pretraining.examples",
    auto_class="AutoModelForMaskedLM",
    metrics=METRICS,
    head=masked_lm_head,
)

"""Masked-language-model pretraining, without torch."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schedules import masking_rates, schedule_of
from neobert.config.schema import RunConfig
from neobert.families.shape import ModelShape
from neobert.tasks.spec import ACCURACY, LOSS, Head, Metric, TaskSpec

PERPLEXITY = Metric("eval/perplexity", is_higher_better=False)


def masked_lm_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: vocabulary logits at the masked tokens, or at all tokens."""
    rates, max_steps = masking_rates(config.datacollator), config.trainer.max_steps
    masked = rates.mean(schedule_of(config.scheduler, max_steps), max_steps)
    is_masked_only = config.trainer.masked_logits_only_loss
    head = Head(
        parameters=shape.parameters.decoder,
        weights=shape.decoder_products,
        width=shape.vocab_size,
        scored_share=masked if is_masked_only else 1.0,
    )
    if rates.first == rates.last or not is_masked_only:
        return head
    path = f"{rates.first:.1%} at first, {rates.last:.1%} at the end of the schedule"
    positions = f"predicted positions ({masked:.1%} of the tokens on average: {path})"
    return replace(head, most_scored_share=rates.largest, scored_positions=positions)


PRETRAINING = TaskSpec(
    name="pretrain",
    summary="masked-language-model pretraining",
    module="neobert.tasks.pretraining.task",
    examples="neobert.tasks.pretraining.examples",
    auto_class="AutoModelForMaskedLM",
    metrics=(LOSS, ACCURACY, PERPLEXITY),
    head=masked_lm_head,
)

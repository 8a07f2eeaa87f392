"""Masked-language-model pretraining, without torch."""

from __future__ import annotations

from dataclasses import replace

from neobert.config.schema import RunConfig
from neobert.data.sources.rows import text_rows
from neobert.families.shape import ModelShape
from neobert.tasks.spec import ACCURACY, LOSS, Head, Metric, TaskSpec

ACCURACY_OF_WORDS = replace(
    ACCURACY,
    note_on_early_best="A tenth of the targets stay unmasked (datacollator.mask_all), and a model whose "
    "input and output embeddings are tied predicts its input before it has learned anything: accuracy falls "
    "before it rises.",
)
PERPLEXITY = Metric("eval/perplexity", is_higher_better=False)


def masked_lm_head(config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: vocabulary logits at the masked tokens, or at all tokens."""
    is_masked_only = config.trainer.masked_logits_only_loss
    return Head(
        parameters=shape.parameters.decoder,
        weights=shape.decoder_products,
        width=shape.vocab_size,
        scored_share=config.datacollator.mlm_probability if is_masked_only else 1.0,
    )


PRETRAINING = TaskSpec(
    name="pretrain",
    summary="masked-language-model pretraining",
    module="neobert.tasks.pretraining.task",
    examples="neobert.tasks.pretraining.examples",
    auto_class="AutoModelForMaskedLM",
    predicts="masked",
    metrics=(LOSS, ACCURACY_OF_WORDS, PERPLEXITY),
    head=masked_lm_head,
    rows=lambda config: text_rows(config.dataset),
)

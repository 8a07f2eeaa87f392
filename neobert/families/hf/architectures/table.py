"""Table of architectures by `model_type` in transformers' config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from importlib import import_module

from neobert.families.hf.architecture import Architecture

PLACES = {
    "bert": "bert.BERT",
    "modernbert": "modernbert.MODERNBERT",
    "roberta": "roberta.ROBERTA",
    "xlm-roberta": "roberta.XLM_ROBERTA",
    "camembert": "roberta.CAMEMBERT",
    "distilbert": "distilbert.DISTILBERT",
    "electra": "electra.ELECTRA",
    "eurobert": "eurobert.EUROBERT",
    "mpnet": "mpnet.MPNET",
    "deberta-v2": "deberta_v2.DEBERTA_V2",
    "llama": "llama.LLAMA",
    "qwen2": "qwen.QWEN2",
    "qwen3": "qwen.QWEN3",
    "mistral": "mistral.MISTRAL",
    "gemma": "gemma.GEMMA",
    "gemma2": "gemma.GEMMA2",
    "gemma3_text": "gemma.GEMMA3",
    "smollm3": "smollm3.SMOLLM3",
    "phi3": "phi3.PHI3",
    "olmo2": "olmo2.OLMO2",
    "granite": "granite.GRANITE",
    "gpt_neox": "gpt_neox.GPT_NEOX",
    "gpt2": "gpt2.GPT2",
    "starcoder2": "starcoder2.STARCODER2",
    "cohere": "cohere.COHERE",
    "glm4": "glm4.GLM4",
    "opt": "opt.OPT",
}
"""Module next to this one, and name, of each architecture."""
CROSSES = "its {} across document boundaries in a row"
REFUSED = {
    "bloom": "its attention has biases by distance, and does not go through transformers' AttentionInterface",
    "gptj": "its attention does not go through transformers' AttentionInterface",
    "gpt_oss": "its attention has sinks, which packed attention does not compute",
    "lfm2": CROSSES.format("convolutions read"),
    "mamba": CROSSES.format("state runs"),
    "mamba2": CROSSES.format("state runs"),
    "qwen3_next": CROSSES.format("linear attention runs"),
    "stablelm": "its blocks do not pass document boundaries on to attention",
}
"""Causal models that cannot be packed, with the reason."""


class ArchitectureTable(Mapping[str, Architecture]):
    """Architectures by `model_type`; each module is imported when it is first needed."""

    def __getitem__(self, model_type: str) -> Architecture:
        module, name = PLACES[model_type].split(".")
        architecture: Architecture = getattr(import_module(f"{__package__}.{module}"), name)
        return architecture

    def __contains__(self, model_type: object) -> bool:
        return model_type in PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(PLACES)

    def __len__(self) -> int:
        return len(PLACES)


ARCHITECTURES = ArchitectureTable()

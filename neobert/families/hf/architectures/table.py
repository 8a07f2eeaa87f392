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
    "qwen2": "qwen2.QWEN2",
}
"""Module beside this one, and name, of each architecture."""


class Table(Mapping[str, Architecture]):
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


ARCHITECTURES = Table()

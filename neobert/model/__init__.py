"""NeoBERT model code. Importing it registers the type "neobert" with transformers' auto classes."""

import transformers
from transformers import AutoConfig

from neobert.model import modeling_neobert
from neobert.model.build import build_model_config
from neobert.model.configuration_neobert import AUTO_MAP, NeoBERTConfig
from neobert.model.encoder import NeoBERT
from neobert.model.modeling_neobert import (
    NeoBERTForSequenceClassification,
    NeoBERTForTokenClassification,
    NeoBERTLMHead,
)

AutoConfig.register("neobert", NeoBERTConfig, exist_ok=True)
NeoBERTConfig.register_for_auto_class()
for door, path in AUTO_MAP.items():
    if door == "AutoConfig":
        continue
    auto_class, model_class = getattr(transformers, door), getattr(modeling_neobert, path.partition(".")[2])
    auto_class.register(NeoBERTConfig, model_class, exist_ok=True)
    # `save_pretrained` then writes the modeling code next to the weights, for programs without this project.
    model_class.register_for_auto_class(auto_class)

__all__ = [
    "NeoBERT",
    "NeoBERTConfig",
    "NeoBERTForSequenceClassification",
    "NeoBERTForTokenClassification",
    "NeoBERTLMHead",
    "build_model_config",
]

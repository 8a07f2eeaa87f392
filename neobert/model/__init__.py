"""The model. Importing it makes `AutoModel` and its kin know the type "neobert"."""

from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from neobert.model.build import build_model_config, materialize
from neobert.model.configuration_neobert import NeoBERTConfig
from neobert.model.modeling_neobert import NeoBERT, NeoBERTForSequenceClassification, NeoBERTLMHead

AutoConfig.register("neobert", NeoBERTConfig, exist_ok=True)
NeoBERTConfig.register_for_auto_class()
for door, model_class in {
    AutoModel: NeoBERT,
    AutoModelForMaskedLM: NeoBERTLMHead,
    AutoModelForSequenceClassification: NeoBERTForSequenceClassification,
}.items():
    door.register(NeoBERTConfig, model_class, exist_ok=True)
    # `save_pretrained` then writes the modeling code beside the weights, for who has not this project.
    model_class.register_for_auto_class(door)

__all__ = [
    "NeoBERT",
    "NeoBERTConfig",
    "NeoBERTForSequenceClassification",
    "NeoBERTLMHead",
    "build_model_config",
    "materialize",
]

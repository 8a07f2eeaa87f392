"""The model. Importing it makes `AutoModel` and its kin know the type "neobert"."""

from transformers import AutoConfig, AutoModel, AutoModelForMaskedLM, AutoModelForSequenceClassification

from neobert.model.build import build_model_config, materialize
from neobert.model.configuration_neobert import NeoBERTConfig
from neobert.model.modeling_neobert import NeoBERT, NeoBERTForSequenceClassification, NeoBERTLMHead

AutoConfig.register("neobert", NeoBERTConfig, exist_ok=True)
AutoModel.register(NeoBERTConfig, NeoBERT, exist_ok=True)
AutoModelForMaskedLM.register(NeoBERTConfig, NeoBERTLMHead, exist_ok=True)
AutoModelForSequenceClassification.register(NeoBERTConfig, NeoBERTForSequenceClassification, exist_ok=True)

__all__ = [
    "NeoBERT",
    "NeoBERTConfig",
    "NeoBERTForSequenceClassification",
    "NeoBERTLMHead",
    "build_model_config",
    "materialize",
]

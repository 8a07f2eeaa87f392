"""Table of architectures by `model_type` in transformers' config.json. Imports no torch."""

from __future__ import annotations

from collections.abc import Mapping

from neobert.families.hf.architecture import Architecture
from neobert.families.hf.architectures.bert import BERT
from neobert.families.hf.architectures.deberta_v2 import DEBERTA_V2
from neobert.families.hf.architectures.distilbert import DISTILBERT
from neobert.families.hf.architectures.electra import ELECTRA
from neobert.families.hf.architectures.eurobert import EUROBERT
from neobert.families.hf.architectures.modernbert import MODERNBERT
from neobert.families.hf.architectures.mpnet import MPNET
from neobert.families.hf.architectures.roberta import CAMEMBERT, ROBERTA, XLM_ROBERTA

ARCHITECTURES: Mapping[str, Architecture] = {
    "bert": BERT,
    "modernbert": MODERNBERT,
    "roberta": ROBERTA,
    "xlm-roberta": XLM_ROBERTA,
    "camembert": CAMEMBERT,
    "distilbert": DISTILBERT,
    "electra": ELECTRA,
    "eurobert": EUROBERT,
    "mpnet": MPNET,
    "deberta-v2": DEBERTA_V2,
}

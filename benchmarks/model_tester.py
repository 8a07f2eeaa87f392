"""transformers' own tests of models, on the code of an exported folder.

`consumers.py` copies this file into transformers' tests. EXPORTED names the folder. The tests find models by
name in the library and do not trust code in a folder, so names and classes are registered.
"""

import os
import unittest

import torch
import transformers
from tests.test_modeling_common import ModelTesterMixin, ids_tensor, random_attention_mask
from transformers.dynamic_module_utils import get_class_from_dynamic_module
from transformers.models.auto import modeling_auto

FOLDER = os.environ["EXPORTED"]
MAPPINGS = {
    "MODEL_MAPPING_NAMES": "NeoBERT",
    "MODEL_FOR_MASKED_LM_MAPPING_NAMES": "NeoBERTLMHead",
    "MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES": "NeoBERTForSequenceClassification",
    "MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES": "NeoBERTForTokenClassification",
    "MODEL_FOR_QUESTION_ANSWERING_MAPPING_NAMES": "NeoBERTForQuestionAnswering",
}
for mapping, name in MAPPINGS.items():
    getattr(modeling_auto, mapping)["neobert"] = name
CONFIG = get_class_from_dynamic_module("configuration_neobert.NeoBERTConfig", FOLDER)
CLASSES = tuple(
    get_class_from_dynamic_module(f"modeling_neobert.{name}", FOLDER) for name in MAPPINGS.values()
)
AUTO = ("", "ForMaskedLM", "ForSequenceClassification", "ForTokenClassification", "ForQuestionAnswering")
transformers.AutoConfig.register("neobert", CONFIG)
for task, each in zip(AUTO, CLASSES, strict=True):
    getattr(transformers, f"AutoModel{task}").register(CONFIG, each)


class Tester:
    """Configs and inputs for the common tests of models."""

    is_training = True
    batch_size, seq_length, hidden_size = 3, 7, 32
    num_hidden_layers, num_attention_heads, num_labels = 2, 4, 3

    def __init__(self, parent):
        self.parent = parent

    def get_config(self):
        return CONFIG(
            vocab_size=99, hidden_size=self.hidden_size, num_hidden_layers=self.num_hidden_layers,
            num_attention_heads=self.num_attention_heads, intermediate_size=48, max_position_embeddings=64,
        )  # fmt: skip

    def prepare_config_and_inputs_for_common(self):
        shape = [self.batch_size, self.seq_length]
        return self.get_config(), {
            "input_ids": ids_tensor(shape, 99),
            "attention_mask": random_attention_mask(shape),
        }


class NeoBERTModelTest(ModelTesterMixin, unittest.TestCase):
    all_model_classes = CLASSES

    def setUp(self):
        torch.manual_seed(0)
        self.model_tester = Tester(self)

    @unittest.skip("from_pretrained refuses a folder that lacks weights of the encoder, by design")
    def test_model_weights_reload_no_missing_tied_weights(self):
        pass

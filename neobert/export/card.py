"""Model card (README.md) of an exported folder."""

from __future__ import annotations

from collections.abc import Mapping

from transformers import PreTrainedModel, PreTrainedTokenizerFast

from neobert.export.embedding_files import EmbeddingFiles
from neobert.export.markdown import escape_markdown
from neobert.model.pretrained import NeoBERTPreTrainedModel
from neobert.tasks.spec import Card
from neobert.tasks.specs import SPECS

CARD = """---
library_name: {library}
pipeline_tag: {task}
{metrics}tags: [neobert, encoder, {tag}]
---

# NeoBERT{purpose}, {num_hidden_layers} blocks of width {hidden_size}

A bidirectional encoder (arXiv:2502.19587) with {num_parameters:,} parameters, {num_attention_heads} heads
and a vocabulary of {vocab_size:,}; sequences of up to {max_position_embeddings:,} tokens.
{usage}"""

MASKED_LM = """
```python
from transformers import pipeline

fill = pipeline("fill-mask", model="PATH_OR_NAME", trust_remote_code=True)
```

`AutoModel` returns the hidden states, `AutoModelForMaskedLM` the logits of the decoder; both need torch,
transformers and `trust_remote_code=True`, or `import neobert.model` first if `neobert-launch` is installed.
`attn_implementation` takes transformers' names.
Packed input (`input_ids` [1, T] with `cu_seq_lens_q` and `max_length_q`, or with `position_ids` that restart)
keeps its documents isolated from each other.

An embedding of a text is {pooling} (`config.pooling`); padding on either side changes nothing.
`AutoModelForSequenceClassification` adds a head of two layers. An adapter must save both layers, or one is
initialized randomly at every load:

```python
LoraConfig(task_type="SEQ_CLS", target_modules="all-linear", modules_to_save=["dense", "classifier"])
```
"""

HIDDEN_STATES = """
```python
from transformers import AutoModel

encoder = AutoModel.from_pretrained("PATH_OR_NAME", trust_remote_code=True)
```

An embedding of a text is {pooling} (`config.pooling`); padding on either side changes nothing.
"""

EMBEDDER = """
```python
from sentence_transformers import SentenceTransformer

encoder = SentenceTransformer("PATH_OR_NAME"{trust})
queries, documents = encoder.encode_query(["one text"]), encoder.encode_document(["another"])
```

An embedding is {pooling}, as `1_Pooling` declares. The prompts are in
`config_sentence_transformers.json`. The folder also loads with transformers: `AutoModel` returns the hidden
states.
"""

POOLED = {
    "avg": "the mean of `last_hidden_state` over the tokens in `attention_mask`",
    "max": "the maximum of `last_hidden_state` over the tokens in `attention_mask`",
    "cls": "the `last_hidden_state` of the first token",
}

CLASSIFIER = """
{labels}

```python
from transformers import pipeline

classify = pipeline("text-classification", model="PATH_OR_NAME"{trust})
classify("one text")
classify({{"text": "the first text of a pair", "text_pair": "the second"}})
```

`AutoModelForSequenceClassification` returns the logits.{needs}
"""
TAGGER = """
Labels of words: {names}.

```python
from transformers import pipeline

tag = pipeline("token-classification", model="PATH_OR_NAME"{trust})
tag("one text", aggregation_strategy="first")
```

Words that are split already: join them with spaces, as in training, and find the tokens of a word by
`offset_mapping`. With `is_split_into_words=True`, a byte-level tokenizer makes other tokens, without the
space before a word. For such a tokenizer the pipeline warns of a heuristic: it finds words by the spaces
between them, as in training.

The first token of each word was trained to have the word's label. `AutoModelForTokenClassification` returns
the logits.{needs}
"""
TRUST = ", trust_remote_code=True"
NEEDS = """ It needs torch and transformers. Pass `trust_remote_code=True`,
or, if `neobert-launch` is installed, run `import neobert.model` first."""
ONNX = """
`onnx/model.onnx` needs neither torch nor transformers:

```python
import numpy as np
import onnxruntime
from tokenizers import Tokenizer

tokenizer = Tokenizer.from_file("FOLDER/tokenizer.json")
tokenizer.enable_padding(pad_id={pad_id}, pad_token={pad_token!a})
tokenizer.enable_truncation({max_length})
session = onnxruntime.InferenceSession("FOLDER/onnx/model.onnx")
rows = tokenizer.encode_batch(["one text", "another, longer text"])
mask = np.array([row.attention_mask for row in rows])
inputs = {{"input_ids": np.array([row.ids for row in rows]), "attention_mask": mask}}
({output},) = session.run(["{output}"], inputs)
```

{meaning}
"""
ENCODER = {"task": "feature-extraction", "metrics": "", "tag": "feature-extraction", "purpose": ""}
GRAPH_OUTPUTS = {
    "last_hidden_state": "`last_hidden_state` has a vector per token; a token with mask 0 is padding.",
    "logits": "`logits` has a value per label; `id2label` in config.json has the names of the labels.",
}
CLASS_METRICS, SCORE_METRICS = "accuracy, f1, matthews_correlation", "pearsonr, spearmanr"


TRANSFORMERS_CARD = """---
library_name: {library}
tags: [{model_type}]
---

# {name}

{kind}: {num_layers} blocks of width {hidden_size}, {num_parameters:,}
parameters and a vocabulary of {vocab_size:,}.
{usage}"""

LOADED_WITH_TRANSFORMERS = """
```python
from {library} import {name}

model = {name}.from_pretrained("PATH_OR_NAME")
```
"""


KINDS = {"nsa": "A native sparse attention (NSA) model from flash-linear-attention"}
"""Descriptions in cards by model_type, for models that are not from transformers."""
LIBRARIES = {"nsa": "fla.models"}
"""Modules to import a model from, by model_type, if not transformers."""
CHAT = """
```python
from transformers import pipeline

chat = pipeline("text-generation", model="PATH_OR_NAME")
reply = chat([{"role": "user", "content": "one question"}], max_new_tokens=200)
print(reply[0]["generated_text"][-1]["content"])
```
"""
USAGE_BY_HEAD = {"ForSequenceClassification": CLASSIFIER, "ForTokenClassification": TAGGER}
"""Usage of a model by the suffix of its class name."""


def model_card(model: PreTrainedModel, *, is_chat: bool = False) -> str:
    """Return the text of README.md for a NeoBERT with any head or none, or for a transformers model.

    `is_chat`: whether the tokenizer of a causal model has a chat template.
    """
    card = _task_card(model)
    if not isinstance(model, NeoBERTPreTrainedModel):
        library = LIBRARIES.get(model.config.model_type, "transformers")
        usage = LOADED_WITH_TRANSFORMERS.format(name=_class_name(model), library=library)
        if is_chat and library == "transformers":
            usage = CHAT
        if card is not None:
            usage = card.usage.format(trust="")
        elif template := next(
            (text for head, text in USAGE_BY_HEAD.items() if _class_name(model).endswith(head)), ""
        ):
            usage = template.format(labels=_labels_line(model), names=_label_names(model), trust="", needs="")
        return _transformers_card(model, "transformers", usage)
    head_parts = _task_card_parts(card) if card else _CARDS.get(_class_name(model), _masked_lm_parts)(model)
    return _fill_template(model, {"library": "transformers", **head_parts})


def embedder_card(model: PreTrainedModel, embedding: EmbeddingFiles) -> str:
    """Return the text of README.md for a sentence-transformers folder."""
    is_own = isinstance(model, NeoBERTPreTrainedModel)
    usage = EMBEDDER.format(pooling=POOLED[embedding.pooling], trust=TRUST if is_own else "")
    if not is_own:
        return _transformers_card(model, "sentence-transformers", usage)
    library_parts = {
        "library": "sentence-transformers",
        "task": "sentence-similarity",
        "tag": "sentence-transformers",
    }
    return _fill_template(model, {**library_parts, "metrics": "", "purpose": "", "usage": usage})


def graph_card(model: PreTrainedModel, tokenizer: PreTrainedTokenizerFast, output: str) -> str:
    """Return the text of README.md for an ONNX folder. `output`: name of the graph's output."""
    usage = ONNX.format(
        output=output,
        pad_token=tokenizer.pad_token,
        pad_id=tokenizer.pad_token_id,
        max_length=tokenizer.model_max_length,
        meaning=GRAPH_OUTPUTS[output],
    )
    if not isinstance(model, NeoBERTPreTrainedModel):
        return _transformers_card(model, "onnx", usage)
    head = _CARDS.get(_class_name(model))
    return _fill_template(model, {**(head(model) if head else ENCODER), "library": "onnx", "usage": usage})


def _transformers_card(model: PreTrainedModel, library: str, usage: str) -> str:
    return TRANSFORMERS_CARD.format(
        kind=KINDS.get(model.config.model_type, f"A transformers {model.config.model_type} model"),
        library=library,
        name=_class_name(model),
        model_type=model.config.model_type,
        num_layers=model.config.num_hidden_layers,
        hidden_size=model.config.hidden_size,
        num_parameters=_num_parameters(model),
        vocab_size=model.config.vocab_size,
        usage=usage,
    )


def _class_name(model: PreTrainedModel) -> str:
    return type(model).__name__.removeprefix("FSDP")


def _fill_template(model: NeoBERTPreTrainedModel, parts: Mapping[str, str]) -> str:
    return CARD.format(num_parameters=_num_parameters(model), **model.config.to_dict(), **parts)


def _num_parameters(model: PreTrainedModel) -> int:
    """Return the number of parameters, excluding LoRA factors, which are merged into the weights."""
    return sum(each.numel() for name, each in model.named_parameters() if ".lora_" not in name)


def _masked_lm_parts(model: NeoBERTPreTrainedModel) -> dict[str, str]:
    return {
        "task": "fill-mask",
        "metrics": "",
        "tag": "masked-lm",
        "purpose": "",
        "usage": MASKED_LM.format(pooling=POOLED[model.config.pooling]),
    }


def _task_card(model: PreTrainedModel) -> Card | None:
    """Return the card that a task defines for models with its head, or None if it defines none."""
    heads = {spec.auto_class.removeprefix("AutoModel"): spec.card for spec in SPECS.values() if spec.card}
    return next((card for head, card in heads.items() if _class_name(model).endswith(head)), None)


def _task_card_parts(card: Card) -> dict[str, str]:
    return {
        "task": card.tag,
        "metrics": f"metrics: [{card.metrics}]\n",
        "tag": card.tag,
        "purpose": card.purpose,
        "usage": card.usage.format(trust=", trust_remote_code=True"),
    }


def _encoder_parts(model: NeoBERTPreTrainedModel) -> dict[str, str]:
    return {**ENCODER, "usage": HIDDEN_STATES.format(pooling=POOLED[model.config.pooling])}


def _classifier_parts(model: NeoBERTPreTrainedModel) -> dict[str, str]:
    is_score = model.config.problem_type == "regression"
    return {
        "task": "text-classification",
        "metrics": f"metrics: [{SCORE_METRICS if is_score else CLASS_METRICS}]\n",
        "tag": "text-regression" if is_score else "text-classification",
        "purpose": " for regression" if is_score else " classifier",
        "usage": CLASSIFIER.format(labels=_labels_line(model), trust=TRUST, needs=NEEDS),
    }


def _tagger_parts(model: NeoBERTPreTrainedModel) -> dict[str, str]:
    return {
        "task": "token-classification",
        "metrics": "metrics: [accuracy, precision, recall, f1]\n",
        "tag": "token-classification",
        "purpose": " for labels of words",
        "usage": TAGGER.format(names=_label_names(model), trust=TRUST, needs=NEEDS),
    }


def _labels_line(model: PreTrainedModel) -> str:
    if model.config.problem_type == "regression":
        return "It predicts one score per text."
    return f"Labels: {_label_names(model)}."


def _label_names(model: PreTrainedModel) -> str:
    return ", ".join(escape_markdown(name) for _, name in sorted(model.config.id2label.items()))


_CARDS = {
    "NeoBERT": _encoder_parts,
    "NeoBERTForSequenceClassification": _classifier_parts,
    "NeoBERTForTokenClassification": _tagger_parts,
}

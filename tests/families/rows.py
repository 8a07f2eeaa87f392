"""Rows and keys of each task, and a tokenizer for them."""

import json
import random
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

WORDS = [first + second for first in "bdfgklmnprst" for second in "aeiou"]
SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
LABELS: dict[str, dict[str, Any]] = {
    "pairs": {"task": "classification", "classification": {"pair_column": "other", "pooling": "cls"}},
    "scores": {"task": "classification", "classification": {"problem": "regression", "pooling": "cls"}},
    "tags": {"task": "token_classification", "token_classification": {"label_names": ["O", "B"]}},
}
OF_SEVERAL_TEXTS: dict[str, dict[str, Any]] = {
    "answers": {"task": "question_answering", "question_answering": {"doc_stride": 2}},
    "choices": {"task": "multiple_choice", "multiple_choice": {"max_choices": 2}},
}
"""Tasks whose head not every architecture has."""


def write_rows(folder: Path) -> None:
    """Write rows for each task, and a tokenizer with the special tokens and the pairs of a RoBERTa."""
    draw = random.Random(5)
    vocabulary = {word: place for place, word in enumerate(SPECIAL + WORDS)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0))
    roles = {"cls_token": "<s>", "bos_token": "<s>", "sep_token": "</s>", "eos_token": "</s>"}
    roles |= {"pad_token": "<pad>", "unk_token": "<unk>", "mask_token": "<mask>"}
    PreTrainedTokenizerFast(tokenizer_object=backend, **roles).save_pretrained(folder / "tokenizer")
    texts = [[draw.choice(WORDS) for _ in range(draw.randint(3, 12))] for _ in range(40)]
    rows: dict[str, list[dict[str, Any]]] = {
        "text": [{"text": " ".join(words)} for words in texts],
        "pairs": [{"text": " ".join(words), "other": words[0], "label": len(words) % 2} for words in texts],
        "scores": [{"text": " ".join(words), "label": len(words) / 12} for words in texts],
        "tags": [{"tokens": words, "tags": ["OB"[word[1] == "a"] for word in words]} for words in texts],
        "answers": [
            {"question": words[0], "context": " ".join(words), "answer": " ".join(words)} for words in texts
        ],
        "choices": [
            {"question": words[0], "choices": words[1:3], "label": len(words) % 2} for words in texts
        ],
    }
    for name, values in rows.items():
        lines = (json.dumps(value) for value in values)
        (folder / f"{name}.jsonl").write_text("\n".join(lines))

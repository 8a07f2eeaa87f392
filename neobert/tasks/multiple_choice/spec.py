"""Specification of multiple choice: head, rows and labels. Imports no torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from neobert.config.schema import RunConfig
from neobert.families.hf.architecture import HeadPath
from neobert.families.shape import ModelShape
from neobert.tasks.multiple_choice.rows import COLUMNS_SETTING, LABEL_SETTING, LIST_SETTING, row_format
from neobert.tasks.multiple_choice.section import MULTIPLE_CHOICE
from neobert.tasks.spec import Card, Contradiction, Head, LabelSpec, TaskSpec

MAX_SETTING = "multiple_choice.max_choices"


def _bert_pooler_head(encoder: str) -> HeadPath:
    return HeadPath("classifier", (f"{encoder}.pooler.dense", "=tanh", "dropout"))


HEADS = {
    "bert": _bert_pooler_head("bert"),
    "roberta": _bert_pooler_head("roberta"),
    "xlm-roberta": _bert_pooler_head("roberta"),
    "camembert": _bert_pooler_head("roberta"),
    "mpnet": _bert_pooler_head("mpnet"),
    "distilbert": HeadPath("classifier", ("pre_classifier", "=relu", "dropout")),
    "electra": HeadPath("classifier", ("sequence_summary.summary", "sequence_summary.activation", "dropout")),
    "modernbert": HeadPath("classifier", ("head", "dropout")),
    "deberta-v2": HeadPath("classifier", ("pooler.dense", "=pooler_hidden_act", "dropout")),
}
USAGE = """
Each choice is scored together with the prompt, as a pair of texts:

```python
import torch
from transformers import AutoModelForMultipleChoice, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_OR_NAME")
model = AutoModelForMultipleChoice.from_pretrained("PATH_OR_NAME"{trust}).eval()
prompt, choices = "the prompt", ["one choice", "another"]
rows = tokenizer([prompt] * len(choices), choices, padding=True, return_tensors="pt")
with torch.no_grad():
    logits = model(**{{name: each[None] for name, each in rows.items()}}).logits
print(choices[int(logits.argmax())])
```
"""


def choice_head(_config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: a dense layer and one output, applied once per choice."""
    hidden = shape.hidden_size
    return Head(
        parameters=hidden * (hidden + 1) + hidden + 1,
        weights=hidden * (hidden + 1),
        width=1,
        scored_share=1.0,
        is_per_document=True,
    )


def describe_labels(config: RunConfig) -> LabelSpec:
    """Describe the labels of the data: indices of choices, up to max_choices."""
    numbers = range(MULTIPLE_CHOICE.read_section(config).max_choices)
    return LabelSpec("row", LABEL_SETTING, MAX_SETTING, tuple(map(str, numbers)))


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Return dropout, and pooling if set."""
    section = MULTIPLE_CHOICE.read_section(config)
    settings: dict[str, Any] = {"classifier_dropout": section.dropout}
    return settings if section.pooling is None else settings | {"pooling": section.pooling}


def contradictions(config: RunConfig) -> Iterator[Contradiction]:
    """Yield contradictions of choice_columns: with choices_column, or with max_choices by their number."""
    section = MULTIPLE_CHOICE.read_section(config)
    columns, most = section.choice_columns, section.max_choices
    if columns is None:
        return
    if section.choices_column is not None:
        problem = "choice_columns and choices_column are both set"
        yield Contradiction(COLUMNS_SETTING, problem, f"remove {COLUMNS_SETTING} or {LIST_SETTING}")
    elif len(columns) != most:
        problem = f"choice_columns has {len(columns)} columns, but max_choices is {most}"
        yield Contradiction(COLUMNS_SETTING, problem, f"set {MAX_SETTING} to {max(2, len(columns))}")


SPEC = TaskSpec(
    keys=MULTIPLE_CHOICE,
    summary="the best of several choices for a prompt",
    auto_class="AutoModelForMultipleChoice",
    predicts="labels",
    head=choice_head,
    model_settings=model_settings,
    rows=row_format,
    labels=describe_labels,
    labels_texts=True,
    texts=lambda config: MULTIPLE_CHOICE.read_section(config).max_choices,
    contradictions=contradictions,
    heads=HEADS,
    predicted=("prediction", "probability", "probabilities"),
    card=Card("multiple-choice", " for multiple choice", "accuracy", USAGE),
)

"""Specification of question answering: head, rows and metrics. Imports no torch."""

from __future__ import annotations

from typing import Any

from neobert.config.schema import RunConfig
from neobert.families.hf.architecture import HeadPath
from neobert.families.shape import ModelShape
from neobert.tasks.metric import Metric
from neobert.tasks.question_answering.rows import ANSWER_SETTING, row_format
from neobert.tasks.question_answering.section import F1_BY_KIND, QUESTION_ANSWERING
from neobert.tasks.spec import Card, Head, LabelSpec, TaskSpec

OUTPUTS = 2
"""Number of logits of a token: as the first token of the answer, and as the last."""
SETTINGS = "question_answering"
"""Key of config.json with the settings of predictions."""
HEADS = {
    name: HeadPath("qa_outputs")
    for name in (
        "bert", "roberta", "xlm-roberta", "camembert", "distilbert", "electra", "mpnet", "deberta-v2",
    )
} | {"modernbert": HeadPath("classifier", ("head",))}  # fmt: skip
USAGE = """
The answer to a question is a span of its context, or the first token if there is none:

```python
import torch
from transformers import AutoModelForQuestionAnswering, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("PATH_OR_NAME")
model = AutoModelForQuestionAnswering.from_pretrained("PATH_OR_NAME"{trust}).eval()
context = "The text that the answer is in."
inputs = tokenizer("a question", context, return_offsets_mapping=True, return_tensors="pt")
offsets = inputs.pop("offset_mapping")[0]
with torch.no_grad():
    outputs = model(**inputs)
is_context = torch.tensor([each == 1 for each in inputs.sequence_ids(0)])
scores = outputs.start_logits[0, :, None] + outputs.end_logits[0, None, :]
scores = scores.masked_fill(~(is_context[:, None] & is_context).triu(), -torch.inf)
first, last = divmod(int(scores.argmax()), len(scores))
print(context[offsets[first][0] : offsets[last][1]])
```

A context that exceeds the model's length is read in windows that overlap: `neobert-launch predict` does that.
"""


def span_head(_config: RunConfig, shape: ModelShape) -> Head:
    """Return the size of the head: one linear layer, applied to every token."""
    return Head(
        parameters=OUTPUTS * (shape.hidden_size + 1),
        weights=OUTPUTS * shape.hidden_size,
        width=OUTPUTS,
        scored_share=1.0,
        scored_positions="tokens",
    )


def model_settings(config: RunConfig) -> dict[str, Any]:
    """Return the head settings, and the prediction settings that config.json keeps for `predict`."""
    section = QUESTION_ANSWERING.read_section(config)
    names = ("doc_stride", "max_answer_length", "null_threshold")
    return {"num_labels": OUTPUTS, SETTINGS: {name: getattr(section, name) for name in names}}


def reports(config: RunConfig, metric: Metric) -> bool:
    """Return whether a run reports a metric; metrics by kind of question need a null_threshold."""
    return metric not in F1_BY_KIND or QUESTION_ANSWERING.read_section(config).null_threshold is not None


SPEC = TaskSpec(
    keys=QUESTION_ANSWERING,
    summary="answers to questions, as spans of a context",
    auto_class="AutoModelForQuestionAnswering",
    predicts="labels",
    head=span_head,
    model_settings=model_settings,
    rows=row_format,
    labels=lambda _config: LabelSpec("question", ANSWER_SETTING, ANSWER_SETTING, ()),
    reports=reports,
    heads=HEADS,
    predicted=("answer", "score", "start", "end"),
    card=Card("question-answering", " for answers to questions", "exact_match, f1", USAGE),
)

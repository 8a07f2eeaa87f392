"""Questions and choices from a table to predictions: `init`, `train` and `predict` in an empty folder."""

import json
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]
SMALL = [
    f"--model.{name}={value}"
    for name, value in {
        "hidden_size": 32,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 48,
    }.items()
]
SHORT = (
    "--trainer.max_steps=4",
    "--trainer.eval_steps=2",
    "--tokenizer.vocab_size=128",
    "--scheduler.warmup_steps=1",
)


def question(number: int) -> dict[str, Any]:
    context = f"On day {number} it rained , and {number + 7} people went out ."
    answer = str(number + 7)
    answers = {"text": [answer], "answer_start": [context.rindex(answer)]}
    return {"question": "how many went ?", "context": context, "answers": answers}


def choice(number: int) -> dict[str, Any]:
    choices = [f"it is {number + more}" for more in range(2 + number % 3)]
    return {"question": f"what is {number} ?", "choices": choices, "label": number % 2}


@pytest.mark.parametrize(
    ("task", "row", "inferred", "predicted", "scores"),
    [
        (
            "question_answering",
            question,
            "answer: column 'answers'",
            {"answer", "score", "start", "end"},
            ("exact match", "f1"),
        ),
        (
            "multiple_choice",
            choice,
            "choices: 'choices', up to 4 per row",
            {"prediction", "probability"},
            ("labelled", "accuracy"),
        ),
    ],
    ids=["answers", "choices"],
)
def test_a_table_becomes_a_run_and_predictions(run_child, task, row, inferred, predicted, scores):
    content = [*map(row, range(240))]
    Path("rows.jsonl").write_text("\n".join(map(json.dumps, content)), encoding="utf-8")
    requested = content[:9]
    Path("new.jsonl").write_text("\n".join(map(json.dumps, requested)), encoding="utf-8")
    made = run_child("init", "run.yaml", "--task", task, "--text", "rows.jsonl", "--device", "cpu").passed()
    assert inferred in made.out
    trained = run_child("train", "run.yaml", *SMALL, *SHORT, "--output-format", "json").passed()
    assert trained.json["step"] == 4
    scored = run_child("predict", "runs/run", "new.jsonl", "--output", "out.jsonl").passed()
    assert all(name in scored.out for name in scores)
    found = [json.loads(line) for line in Path("out.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [{name: each[name] for name in requested[0]} for each in found] == requested
    assert found[0].keys() - requested[0].keys() >= predicted

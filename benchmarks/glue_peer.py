"""GLUE scores of an encoder with transformers' Trainer, on the recipe of `evaluate glue`.

    python -m benchmarks.glue_peer MODEL GLUE_OUTPUT --tasks cola,rte --seeds 0 1 2 --output peer-glue.json

MODEL: a folder that transformers loads, such as a ModernBERT. GLUE_OUTPUT: the output folder of `evaluate
glue`, whose rewritten files are read. Batch size, steps, evaluations and patience are the same: model and
trainer differ. Results are written after each run, and a run that has one is not repeated.
"""

from __future__ import annotations

import argparse
import json
import math
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    DataCollatorWithPadding,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    set_seed,
)

from neobert.evaluation.glue.settings import BATCH_SIZE, EVALUATIONS_PER_EPOCH, PATIENCE
from neobert.evaluation.glue.summary import averages, best_row, task_summary
from neobert.evaluation.glue.task import GlueTask
from neobert.evaluation.glue.tasks import TASKS
from neobert.tasks.classification.metrics import classes_of, scores_of

EVALUATED_ROWS = 256
"""In a batch of an evaluation, which changes no score."""


class Patience(TrainerCallback):  # type: ignore[misc]
    """Stop after evaluations without a better metric, and keep the rows of all of them."""

    def __init__(self, metric: str) -> None:
        self._metric = f"eval_{metric}"
        self._best, self._num_worse = float("-inf"), 0
        self.rows: list[dict[str, Any]] = []

    def on_evaluate(self, _: Any, state: Any, control: Any, **more: Any) -> None:
        """Record an evaluation."""
        metrics: dict[str, Any] = more["metrics"]
        row = {name.replace("eval_", "eval/", 1): value for name, value in metrics.items()}
        self.rows.append({"step": state.global_step, **row})
        value = metrics[self._metric]
        self._num_worse = 0 if value > self._best else self._num_worse + 1
        self._best = max(self._best, value)
        control.should_training_stop |= self._num_worse >= PATIENCE


def rows_of(task: GlueTask, file: Path, tokenizer: Any) -> list[dict[str, Any]]:
    """Tokenize a split."""
    rows = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    pairs = [row["pair"] for row in rows] if task.pair else None
    encoded = tokenizer([row["text"] for row in rows], pairs, truncation=True, max_length=task.max_length)
    ids = {name: number for number, name in enumerate(task.labels)}
    labels = [row["label"] if task.is_regression else ids[row["label"]] for row in rows]
    names = list(encoded)
    columns = zip(*(encoded[name] for name in names), labels, strict=True)
    return [dict(zip([*names, "labels"], values, strict=True)) for values in columns]


def train(task: GlueTask, seed: int, options: argparse.Namespace) -> dict[str, Any]:
    """Train one run, and return the metrics of its best evaluation."""
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    data = options.glue / "data" / task.name
    splits = {name: rows_of(task, data / f"{name}.jsonl", tokenizer) for name in ("train", "dev")}
    set_seed(seed)  # before the classifier is drawn: the Trainer sets its seed after that
    model = AutoModelForSequenceClassification.from_pretrained(
        options.model,
        dtype=torch.float32,
        trust_remote_code=True,  # a folder of this project brings its code
        num_labels=1 if task.is_regression else len(task.labels),
        problem_type="regression" if task.is_regression else "single_label_classification",
    )
    per_epoch = math.ceil(len(splits["train"]) / BATCH_SIZE)
    steps = min(task.epochs * per_epoch, options.max_steps or math.inf)
    patience = Patience(task.metrics[0])

    def metrics(predictions: Any) -> dict[str, float]:
        logits = np.asarray(predictions.predictions, np.float64)
        labels = np.asarray(predictions.label_ids, np.float64)
        found = (
            scores_of(logits.reshape(-1), labels)
            if task.is_regression
            else classes_of(logits.argmax(-1).astype(np.float64), labels, len(task.labels))
        )
        return {name.removeprefix("eval/"): value or 0.0 for name, value in found.items()}

    with tempfile.TemporaryDirectory() as folder:
        arguments = TrainingArguments(
            output_dir=folder,
            max_steps=int(steps),
            per_device_train_batch_size=BATCH_SIZE,
            per_device_eval_batch_size=EVALUATED_ROWS,
            learning_rate=options.lr,
            adam_beta2=0.98,
            weight_decay=0.01,
            lr_scheduler_type="linear",
            warmup_steps=round(0.06 * steps),
            eval_strategy="steps",
            eval_steps=math.ceil(per_epoch / EVALUATIONS_PER_EPOCH),
            save_strategy="no",
            bf16=torch.cuda.is_available(),
            logging_nan_inf_filter=False,  # it waits for the GPU in every step
            seed=seed,
            report_to=[],
            disable_tqdm=True,
        )
        Trainer(
            model,
            arguments,
            train_dataset=splits["train"],
            eval_dataset=splits["dev"],
            data_collator=DataCollatorWithPadding(tokenizer),
            compute_metrics=metrics,
            callbacks=[patience],
        ).train()
    best = best_row(task, patience.rows)
    if best is None:
        raise SystemExit(f"{task.name}, seed {seed}: no evaluation; lower --max-steps less")
    return {"seed": seed, "step": best.pop("step"), "metrics": best, "starts_from": "pretrained"}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=Path)
    parser.add_argument("glue", type=Path)
    parser.add_argument("--tasks", required=True)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--lr", type=float, default=5e-5)
    parser.add_argument("--max-steps", type=int)
    parser.add_argument("--output", type=Path, required=True)
    options = parser.parse_args()
    evaluated = json.loads((options.glue / "glue.json").read_text())["tasks"]
    runs: dict[str, list[dict[str, Any]]] = {}
    if options.output.exists():
        finished = json.loads(options.output.read_text())["tasks"]
        runs = {name: list(each["runs"]) for name, each in finished.items()}
    for name in options.tasks.split(","):
        for seed in options.seeds:
            of_task = runs.setdefault(name, [])
            if all(run["seed"] != seed for run in of_task):
                of_task.append(train(TASKS[name], seed, options))
            tasks = {
                each: task_summary(each, evaluated[each]["files"], found)
                for each, found in runs.items()
                if found
            }
            report = {
                "model": options.model.name,
                "lr": options.lr,
                "tasks": tasks,
                "averages": averages(tasks),
            }
            options.output.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            print(name, seed, of_task[-1]["metrics"], flush=True)


if __name__ == "__main__":
    main()

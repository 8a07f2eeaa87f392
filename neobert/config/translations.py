"""Translation of other trainers' config entries to this schema: key, value and unit.

Sources: `TrainingArguments` of transformers, the arguments of its language-model examples, axolotl's config.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Translation:
    """Key of this schema, and the value in the unit of that key."""

    key: str
    value: Any


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _percent(key: str) -> Callable[[Any], Translation | None]:
    def translate(value: Any) -> Translation | None:
        share = _number(value)
        if share is None or not 0 <= share < 1:
            return None
        return Translation(key, _plain(round(100 * share, 6)))

    return translate


def _plain(number: float) -> float:
    return int(number) if number == int(number) else number


def _chosen(key: str, choices: dict[Any, Any]) -> Callable[[Any], Translation | None]:
    def translate(value: Any) -> Translation | None:
        is_known = isinstance(value, str | bool) and value in choices
        return Translation(key, choices[value]) if is_known else None

    return translate


def _epochs(value: Any) -> Translation | None:
    number = _number(value)
    return Translation("trainer.max_epochs", _plain(number)) if number is not None and number > 0 else None


def _held_out(value: Any) -> Translation | None:
    """Translate the size of an evaluation split: a fraction below 1, or a number of documents."""
    number = _number(value)
    if number is None or number <= 0:
        return None
    if number < 1:
        return Translation("dataset.validation_split", number)
    return Translation("dataset.eval_samples", int(number)) if number == int(number) else None


def _held_out_percent(value: Any) -> Translation | None:
    number = _number(value)
    return None if number is None else _held_out(number / 100) if number < 100 else None


def _warmup_share(value: Any) -> Translation | None:
    """Translate a number below 1, which transformers reads as a share; None for a number of steps."""
    return _percent("scheduler.warmup_percent")(value) if isinstance(value, float) and value else None


def _first_rows(value: Any) -> Translation | None:
    return Translation("dataset.train_split", f"train[:{value}]") if _is_count(value) else None


def _seed(value: Any) -> Translation | None:
    return Translation("seed", value) if _is_count(value) else None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _floor(value: Any) -> Translation | None:
    """Translate the keyword arguments of a schedule if the floor of the rate is the only one."""
    is_floor = isinstance(value, dict) and list(value) == ["min_lr_rate"]
    return Translation("scheduler.final_lr_ratio", value["min_lr_rate"]) if is_floor else None


def _clipping(value: Any) -> Translation | None:
    """Translate 0 to null, which disables clipping; None for other values, which need no translation."""
    return Translation("trainer.gradient_clipping", None) if _number(value) == 0 else None


def _tokenizer(value: Any) -> Translation | None:
    """Translate a path or a Hub name `owner/name`; None for a bare name, which may also be a folder."""
    if not isinstance(value, str):
        return None
    if value.startswith(("/", "./", "../", "~")):
        return Translation("tokenizer.path", value)
    return Translation("tokenizer.name", value) if value.count("/") == 1 else None


def _trackers(value: Any) -> Translation | None:
    names = value if isinstance(value, list) else [value]
    is_known = names and all(name in ("wandb", "tensorboard", "trackio") for name in names)
    return Translation("trackers", list(names)) if is_known else None


ADAMW = ("adamw", "adamw_torch", "adamw_torch_fused", "adamw_hf", "adamw_apex_fused")
OPTIMIZER = _chosen(
    "optimizer.name", {**dict.fromkeys(ADAMW, "adamw"), "lion": "lion", "lion_32bit": "lion", "muon": "muon"}
)
METRICS = ("loss", "accuracy", "f1", "precision", "recall", "mcc", "pearson", "spearman")
"""Metrics of all tasks, which other trainers write without `eval/`."""
TRANSLATIONS: dict[str, Callable[[Any], Translation | None]] = {
    "warmup_ratio": _percent("scheduler.warmup_percent"),
    "warmup_proportion": _percent("scheduler.warmup_percent"),
    "warmup_pct": _percent("scheduler.warmup_percent"),
    **dict.fromkeys(("warmup_steps", "warmup"), _warmup_share),
    "decay_ratio": _percent("scheduler.decay_percent"),
    "num_train_epochs": _epochs,
    "num_epochs": _epochs,
    "epochs": _epochs,
    "val_set_size": _held_out,
    "validation_split_percentage": _held_out_percent,
    "tokenizer_name": _tokenizer,
    "tokenizer_name_or_path": _tokenizer,
    "tokenizer_config": _tokenizer,
    "report_to": _trackers,
    "max_grad_norm": _clipping,
    "optim": OPTIMIZER,
    "save_strategy": _chosen("trainer.save_steps", {"no": 0}),
    "eval_strategy": _chosen("trainer.eval_steps", {"no": 0}),
    "evaluation_strategy": _chosen("trainer.eval_steps", {"no": 0}),
    "bf16": _chosen("trainer.mixed_precision", {"auto": "bf16", "full": "bf16"}),
    "finetuning_type": _chosen("adapter.type", {"lora": "lora"}),
    "use_peft": _chosen("adapter.type", {True: "lora"}),
    "use_lora": _chosen("adapter.type", {True: "lora"}),
    "max_train_samples": _first_rows,
    "max_samples": _first_rows,
    **dict.fromkeys(("default_seed", "random_seed", "global_seed", "manual_seed"), _seed),
    "lr_scheduler_kwargs": _floor,
    "use_liger_kernel": _chosen("model.kernel_backend", {True: "liger"}),
    "metric_for_best_model": _chosen(
        "trainer.metric_for_best_model",
        {prefix + name: f"eval/{name}" for name in METRICS for prefix in ("", "eval_")},
    ),
}

CADENCE = "the number of steps decides"
WITHOUT_EFFECT: dict[tuple[str, Any], str] = {
    ("fp16", False): "trainer.mixed_precision names the precision",
    ("fp16_full_eval", False): "evaluations use trainer.mixed_precision",
    ("bf16_full_eval", False): "evaluations use trainer.mixed_precision",
    ("save_strategy", "steps"): CADENCE,
    ("eval_strategy", "steps"): CADENCE,
    ("evaluation_strategy", "steps"): CADENCE,
    ("logging_strategy", "steps"): CADENCE,
    ("max_steps", -1): "a run always ends at trainer.max_steps, or earlier at trainer.max_epochs",
    ("report_to", "none"): "no tracker is used unless trackers names it",
    ("push_to_hub", False): "nothing is uploaded",
    ("group_by_length", False): "documents are packed",
    ("use_liger_kernel", False): "model.kernel_backend decides",
    ("finetuning_type", "full"): "all weights are trained unless adapter is set",
    ("use_peft", False): "all weights are trained unless adapter is set",
    ("use_lora", False): "all weights are trained unless adapter is set",
    ("reinit_weights", False): "weights are new only without model.pretrained_checkpoint",
    ("load_in_8bit", False): "weights are not quantised",
    ("load_in_4bit", False): "weights are not quantised",
}
"""Entries without effect, because they set the default behaviour; with the reason."""

BETAS = {"adam_beta1": 0.9, "adam_beta2": 0.999}
"""Keys that are combined into `optimizer.betas`, and their defaults in `TrainingArguments`."""


def translation_of(name: str, value: Any) -> Translation | None:
    """Translate an entry by the last part of its key; None if it has none."""
    translate = TRANSLATIONS.get(name)
    return None if translate is None else translate(value)


def no_effect_of(name: str, value: Any) -> str:
    """Return the reason for which an entry has no effect here; empty if it has one."""
    if value is None:
        return "it has no value"
    if isinstance(value, list | dict | float):
        return ""
    reason = WITHOUT_EFFECT.get((name, value), "")
    known = next((each for key, each in WITHOUT_EFFECT if (key, each) == (name, value)), None)
    return reason if type(known) is type(value) else ""  # 0 is equal to False

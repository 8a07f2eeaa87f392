"""Keys and values of other trainers and of earlier versions, with their replacements (`migrated_keys.toml`).

Units that differ are converted here. Sources of units: transformers (`TrainingArguments`, examples), axolotl.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import cache, partial
from pathlib import Path as FilePath
from typing import Any, NamedTuple

from neobert.config.keys import all_keys
from neobert.config.nodes import Path, Scalar
from neobert.config.text_formats import text_format

ANY_BATCH = "rows per device are trainer.per_device_train_batch_size, rows per step trainer.global_batch_size"
NO_SUCH = "`neobert-launch explain NAME` searches the keys; if none fits, remove the line"
"""Hint for a key that is in neither the schema nor the table, whose purpose only the user can know."""
METRICS = ("loss", "accuracy", "f1", "precision", "recall", "mcc", "pearson", "spearman")
"""Metrics of all tasks, which other trainers write without `eval/`."""
BETAS = {"adam_beta1": 0.9, "adam_beta2": 0.999}
"""Keys that are combined into `optimizer.betas`, and their defaults in `TrainingArguments`."""
COMPOSER_TIME = re.compile(r"(?P<count>\d+(?:_\d+)*)(?P<unit>[a-z]+)")
"""A time of Composer: ba are batches, which are optimizer steps, and ep epochs."""
PATH_STARTS = ("/", "./", "../", "~")


class Translation(NamedTuple):
    """Key of this schema, and the value in the unit of that key."""

    key: str
    value: Any


@cache
def rename_table() -> Mapping[str, Mapping[str, str]]:
    """Return the parts of the table, each with the replacement of every name."""
    import tomllib  # only files with other keys need it

    text = FilePath(__file__).with_suffix(".toml").read_text("utf-8")
    parts = tomllib.loads(text)
    return {
        part: {name: text for text, names in lines.items() for name in names.split()}
        for part, lines in parts.items()
    }


def advice_for_key(path: Path) -> str:
    """Return the replacement of a key of another trainer or version; empty for a key of this schema."""
    dotted = ".".join(map(str, path))
    return "" if dotted in all_keys() else advice_for_name(path)


def advice_for_name(path: Path) -> str:
    """Return the replacement in the table, also of a key that only another type of the section has."""
    dotted = ".".join(map(str, path))
    if len(path) == 1 and dotted in rename_table()["sections"]:
        return rename_table()["sections"][dotted]
    return rename_table()["keys"].get(dotted) or rename_table()["names"].get(str(path[-1]), "")


def advice_for_value(dotted: str, value: object) -> str:
    """Return the replacement of a value of another trainer or version; empty if there is none."""
    return rename_table()["values"].get(_format_entry(dotted, value), "")


def translated_choice(target: str, value: Scalar) -> Scalar:
    """Translate a value of another trainer for the key `target`; unknown values are returned unchanged."""
    ours = rename_table()["words"].get(_format_entry(target, value), value)
    return 0 if ours == "0" else ours


def no_effect_reason(name: str, value: Any) -> str:
    """Return the reason why an entry has no effect; empty if it has an effect."""
    return (
        "it has no value"
        if value is None
        else rename_table()["without_effect"].get(_format_entry(name, value), "")
    )


def translate_entry(name: str, value: Any) -> Translation | None:
    """Translate an entry by the last part of its key; None if there is no translation."""
    if convert := CONVERSIONS.get(name):
        return convert(value)
    key, _, ours = rename_table()["entries"].get(_format_entry(name, value), "").partition(": ")
    return Translation(key, 0 if ours == "0" else ours) if key else None


def _format_entry(key: str, value: object) -> str:
    """Return `key:value` as in the table; empty for null, a mapping and a list with items."""
    if isinstance(value, bool):
        return f"{key}:{str(value).lower()}"
    return f"{key}:{value}" if isinstance(value, str | int | float) or value == [] else ""


def _parse_number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _drop_fraction(number: float) -> float:
    return int(number) if number == int(number) else number


def _translate_percent(key: str, value: Any) -> Translation | None:
    share = _parse_number(value)
    is_share = share is not None and 0 <= share < 1
    return Translation(key, _drop_fraction(round(100 * share, 6))) if share is not None and is_share else None


def _translate_warmup(value: Any) -> Translation | None:
    """Translate a float below 1, which transformers reads as a share; return None for other values."""
    return (
        _translate_percent("scheduler.warmup_percent", value) if isinstance(value, float) and value else None
    )


def _translate_epochs(value: Any) -> Translation | None:
    number = _parse_number(value)
    return (
        Translation("trainer.max_epochs", _drop_fraction(number))
        if number is not None and number > 0
        else None
    )


def _translate_held_out(value: Any) -> Translation | None:
    """Translate a fraction below 1 or a number of documents to hold out; return None for other values."""
    number = _parse_number(value)
    if number is None or number <= 0:
        return None
    if number < 1:
        return Translation("dataset.validation_split", number)
    return Translation("dataset.eval_samples", int(number)) if number == int(number) else None


def _translate_held_out_percent(value: Any) -> Translation | None:
    number = _parse_number(value)
    return None if number is None or number >= 100 else _translate_held_out(number / 100)


def _translate_count(key: str, form: Callable[[int], Any], value: Any) -> Translation | None:
    is_count = type(value) is int and value >= 0
    return Translation(key, form(value)) if is_count else None


def _translate_floor(value: Any) -> Translation | None:
    """Translate scheduler arguments with `min_lr_rate` alone; return None if there are others."""
    is_floor = isinstance(value, dict) and list(value) == ["min_lr_rate"]
    return Translation("scheduler.final_lr_ratio", value["min_lr_rate"]) if is_floor else None


def _translate_clipping(value: Any) -> Translation | None:
    """Translate 0 to null, which disables clipping; return None for values that need no translation."""
    return Translation("trainer.gradient_clipping", None) if _parse_number(value) == 0 else None


def _translate_time(keys: Mapping[str, str], value: Any) -> Translation | None:
    """Translate Composer's time, such as 4000ba or 2ep, to the key of its unit; None for other units."""
    written = COMPOSER_TIME.fullmatch(value) if isinstance(value, str) else None
    key = keys.get(written["unit"]) if written else None
    return Translation(key, int(written["count"])) if written and key else None


def _translate_tokenizer(value: Any) -> Translation | None:
    """Translate a path or a Hub name `owner/name`; return None for a bare name, which may be a folder."""
    if not isinstance(value, str):
        return None
    if value.startswith(PATH_STARTS):
        return Translation("tokenizer.path", value)
    return Translation("tokenizer.name", value) if value.count("/") == 1 else None


def _translate_texts(value: Any) -> Translation | None:
    """Translate a path to dataset.path, a Hub name to dataset.name; return None for a non-string."""
    if not isinstance(value, str):
        return None
    is_file = value.startswith(PATH_STARTS) or text_format(FilePath(value)) is not None
    return Translation("dataset.path" if is_file else "dataset.name", value)


def _translate_attention_layers(value: Any) -> Translation | None:
    """Translate torchtune's attention layers, with o_proj for output_proj; return None for a non-list."""
    if not isinstance(value, list):
        return None
    return Translation(
        "adapter.target_modules", ["o_proj" if each == "output_proj" else each for each in value]
    )


def _translate_trackers(value: Any) -> Translation | None:
    names = value if isinstance(value, list) else [value]
    is_known = names and all(name in ("wandb", "tensorboard", "trackio", "mlflow") for name in names)
    return Translation("trackers", list(names)) if is_known else None


def _translate_metric(value: Any) -> Translation | None:
    name = value.removeprefix("eval_") if isinstance(value, str) else ""
    return Translation("trainer.metric_for_best_model", f"eval/{name}") if name in METRICS else None


OF_NAMES: Mapping[str, Callable[[Any], Translation | None]] = {
    "warmup_ratio warmup_proportion warmup_pct": partial(_translate_percent, "scheduler.warmup_percent"),
    "decay_ratio": partial(_translate_percent, "scheduler.decay_percent"),
    "warmup_steps warmup": _translate_warmup,
    "num_train_epochs num_epochs epochs": _translate_epochs,
    "val_set_size val_size": _translate_held_out,
    "validation_split_percentage": _translate_held_out_percent,
    "tokenizer_name tokenizer_name_or_path tokenizer_config": _translate_tokenizer,
    "dataset_name": _translate_texts,
    "report_to": _translate_trackers,
    "lora_attn_modules": _translate_attention_layers,
    "max_grad_norm": _translate_clipping,
    "max_train_samples max_samples": partial(_translate_count, "dataset.train_split", "train[:{}]".format),
    "default_seed random_seed global_seed manual_seed seed_everything": partial(
        _translate_count, "seed", int
    ),
    "lr_scheduler_kwargs": _translate_floor,
    "eval_interval": partial(_translate_time, {"ba": "trainer.eval_steps"}),
    "save_interval": partial(_translate_time, {"ba": "trainer.save_steps"}),
    "max_duration": partial(_translate_time, {"ba": "trainer.max_steps", "ep": "trainer.max_epochs"}),
    "t_warmup": partial(_translate_time, {"ba": "scheduler.warmup_steps"}),
    "t_decay": partial(_translate_time, {"ba": "scheduler.decay_steps"}),
    "metric_for_best_model": _translate_metric,
}
CONVERSIONS = {name: convert for names, convert in OF_NAMES.items() for name in names.split()}

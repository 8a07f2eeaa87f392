"""Keys and values of other trainers and of earlier versions, with their replacements."""

from __future__ import annotations

from typing import get_args

from neobert.config.keys import all_keys
from neobert.config.migrated_names import (
    ADAPTERS,
    CHECKPOINT_OR_SIZES,
    DECODER,
    DECODERS,
    FINE_TUNING,
    NAMES,
    NGPT,
    NO_DROPOUT,
    SHARDING,
    TOKENIZER,
)
from neobert.config.nodes import Path
from neobert.config.schema.model import Architecture

NO_SUCH = "`neobert-launch explain NAME` searches the keys; if none fits, remove the line"
"""Hint for a key that is in neither the schema nor these tables, whose purpose only the user can know."""
STATIC = "remove the line; shapes are static"
PREPARED = "remove the line; text is tokenized once and kept under dataset.cache_dir"
LOW_PRECISION = "not supported: training below bf16 is not implemented; remove the section"
SLOWER = "remove the line; runs with the key took longer to the same loss (docs/learning.md)"
ENCODERS = f"only encoders are trained here ({', '.join(('neobert', *get_args(Architecture)))})"
EMBEDDINGS = "train a checkpoint of task: pretrain with sentence-transformers (docs/export.md)"

SECTIONS = {
    "torchao": LOW_PRECISION,
    "float8": LOW_PRECISION,
    "fp8": LOW_PRECISION,
    "transformer_engine": LOW_PRECISION,
    "quartet2": LOW_PRECISION,
    "contrastive": f"not supported yet: {EMBEDDINGS}; remove the section",
    "glue": "not supported: a section of another trainer; write task: classification, or run "
    "`neobert-launch evaluate glue`; remove the section",
    "nsa": DECODER,
    "rl": DECODERS,
    "train_loader": "write dataset for the text, and datacollator for masks and packing",
    "eval_loader": "write dataset.eval_split, or dataset.validation_split for a share of the text",
    "accelerate": SHARDING,
    "deepspeed": SHARDING,
    "fsdp": SHARDING,
    "logging": "write trainer.logging_steps, and wandb.* for Weights & Biases",
    "checkpoint": "write trainer.save_steps and trainer.save_total_limit",
    "checkpointing": "write trainer.save_steps and trainer.save_total_limit",
    "defaults": "write extends: in a profile, or profile: in a run file",
    "<<": "merge keys belong to YAML 1.1; build on a profile, or name values under variables:",
}

KEYS = {
    "model.dropout": NO_DROPOUT,
    "name": "write wandb.name for a tracked run; trainer.output_dir names the folder of the run",
    "model_name": f"write model.pretrained_checkpoint for a checkpoint folder; {ENCODERS}",
    "beta": FINE_TUNING,
    "eval.interval": "write trainer.eval_steps",
    "eval.max_iters": "write trainer.eval_max_batches",
    "trainer.dir": "write trainer.output_dir",
    "trainer.seed": "write seed at the top level",
    "trainer.ema_decay": SLOWER,
    "datacollator.mlm_probability_final": SLOWER,
    "datacollator.mlm_probability_over": SLOWER,
    "trainer.early_stopping": "write trainer.early_stopping_patience",
    "trainer.save_model": "remove the line; a checkpoint always holds the model",
    "trainer.torch_compile_dynamic": STATIC,
    "trainer.enforce_full_packed_batches": "remove the line; every packed microbatch has the same shape",
    "wandb.log_interval": "write trainer.logging_steps",
    "wandb.watch": "remove the line; the norm of the gradients is always recorded",
    "wandb.dir": "remove the line; everything is written to trainer.output_dir",
    "wandb.tags": "remove the line, or set WANDB_TAGS in the environment",
    "wandb.resume": "remove the line; a resumed run continues its Weights & Biases run",
    "dataset.subset": "write dataset.config",
    "dataset.split": "write dataset.train_split",
    "dataset.pin_memory": "remove the line; batches are pinned wherever there is a GPU",
    "dataset.persistent_workers": "remove the line; the threads that build batches live as long as the run",
    "dataset.pre_tokenize": PREPARED,
    "dataset.pre_tokenize_output": PREPARED,
    "dataset.load_all_from_disk": "write dataset.path",
    "dataset.force_redownload": "remove the line; HF_HUB_CACHE names another cache",
    "dataset.alpha": FINE_TUNING,
    "datacollator.return_packed_seqlens": "remove the line; packed batches always contain segment boundaries",
    "dataset.trust_remote_code": "remove the line; datasets with code are not loaded",
    "tokenizer.padding": "remove the line; packed rows have no padding, padded rows have the longest length",
    "tokenizer.truncation": "write dataset.long_documents",
    "model.name": "write model.pretrained_checkpoint to start from a checkpoint; the sizes are keys of model",
    "model.from_hub": "write model.pretrained_checkpoint to start from a checkpoint folder",
    "model.pad_token_id": "remove the line; the tokenizer defines it",
    "model.base_scale": NGPT,
    "model.classifier_init_range": "remove the line; classifiers use the default of NeoBERTConfig",
    "scheduler.num_cycles": "remove the line; the cosine schedule decays over half a period",
    "scheduler.decay_ratio": "write scheduler.decay_percent, in percent",
    "scheduler.warmup_ratio": "write scheduler.warmup_percent, in percent",
}

SECTIONS_AS_TEXT = {
    "model": CHECKPOINT_OR_SIZES,
    "tokenizer": TOKENIZER,
    "dataset": "write dataset.path for files, or dataset.name for the Hub",
    "adapter": ADAPTERS,
}
"""Hints for sections that other trainers write as one text."""

ADAMW_8BIT = (
    "not supported: 8-bit moments would save only 1.4 GiB for NeoBERT (6 bytes per parameter); write adamw"
)
DECOUPLED = (
    "write adamw, and divide optimizer.weight_decay by optimizer.lr: the decay of decoupled_adamw is not "
    "multiplied by the rate"
)
DECODER_TASK = f"not supported yet: {ENCODERS}; TRL and axolotl train decoders"
PLATEAU = "write cosine, linear, sqrt or 1-sqrt; scheduler.decay_percent keeps the peak rate until the decay"
VALUES: dict[tuple[str, str | bool | int], str] = {
    (
        "trainer.mixed_precision",
        "fp16",
    ): "fp16 is not supported: it needs loss scaling and overflows; write bf16",
    (
        "trainer.mixed_precision",
        "float16",
    ): "fp16 is not supported: it needs loss scaling and overflows; write bf16",
    (
        "trainer.mixed_precision",
        "fp8",
    ): "not supported: training in fp8 is not implemented; write bf16",
    ("trainer.mixed_precision", "bfloat16"): "write bf16",
    ("trainer.mixed_precision", "float32"): "write fp32",
    ("task", "pretraining"): "write pretrain",
    ("task", "mlm"): "write pretrain",
    ("task", "glue"): "write classification, or score a checkpoint with `neobert-launch evaluate glue`",
    **{("task", name): f"not supported yet: {EMBEDDINGS}" for name in ("contrastive", "embedding")},
    **{("task", name): DECODER_TASK for name in ("sft", "causal", "causal_lm", "clm", "dpo")},
    ("trainer.max_steps", -1): "write the number of optimizer steps; `preflight --level data` shows how many "
    "an epoch has",
    ("model.attn_backend", "flash_attention_2"): "write flash_attn_varlen",
    ("model.attn_backend", "flash"): "write flash_attn_varlen",
    ("model.attn_backend", "eager"): "write sdpa",
    ("trainer.resume_from_checkpoint", True): "write auto",
    ("trainer.resume_from_checkpoint", False): "write never",
    ("trainer.mixed_precision", True): "write bf16",
    ("trainer.mixed_precision", False): "write fp32",
    ("optimizer.name", "adamw_8bit"): ADAMW_8BIT,
    ("optimizer.name", "decoupled_adamw"): DECOUPLED,
    ("optimizer.name", "decoupled_stableadamw"): DECOUPLED,
    ("optimizer.name", "soap"): "not supported: write adamw, adam, lion, muon or muonclip",
    **{
        ("scheduler.name", name): PLATEAU
        for name in ("wsd", "warmup_stable_decay", "trapezoidal", "constant", "constant_with_warmup")
    },
    ("wandb.mode", "disabled"): "remove wandb from trackers, or write wandb.enabled: false",
}


def advice_for_key(path: Path) -> str:
    """Return the replacement of a key of another trainer or version; empty for a key of this schema."""
    dotted = ".".join(map(str, path))
    if dotted in all_keys():
        return ""
    if len(path) == 1 and dotted in SECTIONS:
        return SECTIONS[dotted]
    return KEYS.get(dotted) or NAMES.get(str(path[-1]), "")


def advice_for_value(dotted: str, value: object) -> str:
    """Return the replacement of a value of another trainer or version; empty if there is none."""
    if isinstance(value, str | bool):
        return VALUES.get((dotted, value), "")
    return VALUES.get((dotted, -1), "") if value == -1 else ""  # 1 and 0 are equal to True and False

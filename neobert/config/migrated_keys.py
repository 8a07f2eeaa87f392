"""Keys and values of other trainers and of earlier versions, with their replacements."""

from __future__ import annotations

from neobert.config.nodes import Path

BATCH = "rows per device are trainer.per_device_train_batch_size"
NO_DROPOUT = "NeoBERT trains without dropout; remove the line"
ONE_CADENCE = "write trainer.save_steps, in optimizer steps"
SHARDING = "remove the line; processes are set with distributed.nproc_per_node and distributed.nnodes"
DECODER = "remove the line; this trains a bidirectional encoder with full attention"
ALWAYS_ON = "remove the line; it is always recorded"
MASKED_LOSS = "remove the line; trainer.masked_logits_only_loss: true is the loss that saves memory here"
STATIC = "remove the line; shapes are static"
BEST = "remove the line; trainer.metric_for_best_model keeps the best checkpoint as checkpoints/best"
PREPARED = "remove the line; text is tokenised once and kept under dataset.cache_dir"
NGPT = "not offered: nGPT is another architecture, which nothing that reads NeoBERT can load; remove the line"
FINE_TUNING = "not offered: it belongs to fine-tuning, and the only task is pretrain; remove the line"
EVALUATION = "not offered: checkpoints are evaluated by other programs, which load them; remove the line"
IN_BF16 = "the kernels here read the weights themselves, in bf16, so converted layers would have no effect"
LOW_PRECISION = f"not offered: {IN_BF16}; remove the section"

SECTIONS = {
    "torchao": LOW_PRECISION,
    "float8": LOW_PRECISION,
    "fp8": LOW_PRECISION,
    "transformer_engine": LOW_PRECISION,
    "quartet2": f"not offered: it needs an sm120a device, and {IN_BF16}; remove the section",
    "contrastive": "not offered: the only task is pretrain; sentence-transformers trains on its checkpoints; "
    "remove the section",
    "glue": "not offered: the only task is pretrain; AutoModelForSequenceClassification loads a checkpoint; "
    "remove the section",
    "nsa": DECODER,
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
    "trainer.train_batch_size": "write trainer.per_device_train_batch_size",
    "trainer.eval_batch_size": "write trainer.per_device_eval_batch_size",
    "trainer.batch_size": "write trainer.per_device_train_batch_size",
    "trainer.dir": "write trainer.output_dir",
    "trainer.steps": "write trainer.max_steps",
    "trainer.disable_tqdm": "remove the line; the launcher shows progress on terminals only",
    "trainer.seed": "write seed at the top level",
    "trainer.compile": "write trainer.torch_compile",
    "trainer.epochs": "write trainer.max_steps; `preflight --level data` tells how many epochs that is",
    "trainer.early_stopping": "remove the line; a run goes on to trainer.max_steps",
    "trainer.load_best_model_at_end": BEST,
    "trainer.save_model": "remove the line; a checkpoint always holds the model",
    "trainer.use_cpu": "remove the line; a profile that requires a cpu keeps the run on it",
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
    "datacollator.return_packed_seqlens": "remove the line; every batch carries its boundaries",
    "dataset.trust_remote_code": "remove the line; data sets with code are not loaded",
    "tokenizer.padding": "remove the line; packed batches have no padding, padded rows what they need",
    "tokenizer.truncation": "write dataset.long_documents",
    "tokenizer.tokenizer_name_or_path": "write tokenizer.name for a hub name, or tokenizer.path for a folder",
    "model.name": "write model.pretrained_checkpoint to start from a checkpoint; the sizes are keys of model",
    "model.from_hub": "write model.pretrained_checkpoint to start from a checkpoint folder",
    "model.pad_token_id": "remove the line; it is the tokenizer's",
    "model.base_scale": NGPT,
    "model.classifier_init_range": "remove the line; it belongs to fine-tuning",
    "scheduler.num_cycles": "remove the line; the decay is one half of a cosine",
    "scheduler.decay_ratio": "write scheduler.decay_percent, in percent",
    "scheduler.warmup_ratio": "write scheduler.warmup_percent, in percent",
}

NAMES = {
    "train_batch_size": BATCH,
    "batch_size": BATCH,
    "micro_batch_size": BATCH,
    "micro_batch_size_per_gpu": BATCH,
    "train_micro_batch_size_per_gpu": BATCH,
    "per_device_batch_size": BATCH,
    "accumulate_grad_batches": "write trainer.gradient_accumulation_steps",
    "grad_accum_steps": "write trainer.gradient_accumulation_steps",
    "gradient_accumulation": "write trainer.gradient_accumulation_steps",
    "max_ckpt": "write trainer.save_total_limit",
    "keep_last_n": "write trainer.save_total_limit",
    "keep_every": "write trainer.save_keep_every",
    "keep_every_n_steps": "write trainer.save_keep_every",
    "asynchronous_save": "write trainer.async_save",
    "async_checkpointing": "write trainer.async_save",
    "save_every": ONE_CADENCE,
    "save_every_n": ONE_CADENCE,
    "save_every_n_steps": ONE_CADENCE,
    "save_interval": ONE_CADENCE,
    "save_strategy": "write trainer.save_steps; 0 saves only the final checkpoint",
    "checkpoint_interval": ONE_CADENCE,
    "ckpt_every": ONE_CADENCE,
    "eval_every": "write trainer.eval_steps",
    "eval_interval": "write trainer.eval_steps",
    "eval_strategy": "write trainer.eval_steps; 0 evaluates only at the end",
    "evaluation_strategy": "write trainer.eval_steps; 0 evaluates only at the end",
    "log_every": "write trainer.logging_steps",
    "log_interval": "write trainer.logging_steps",
    "log_grad_norm": ALWAYS_ON,
    "log_weight_norms": "remove the line; train/weight_norm is in every line of metrics",
    "log_train_accuracy": "remove the line; accuracy is measured in evaluations",
    "report_to": "write trackers, such as trackers: [wandb]; metrics.jsonl is always written",
    "pretraining_prob": "write datacollator.mlm_probability",
    "mlm_prob": "write datacollator.mlm_probability",
    "mask_prob": "write datacollator.mlm_probability",
    "packing": "write datacollator.pack_sequences",
    "pack_sequences_mode": "remove the line; packed documents are always isolated from each other",
    "learning_rate": "write optimizer.lr",
    "max_lr": "write optimizer.lr",
    "min_lr": "write scheduler.final_lr_ratio, the floor as a share of optimizer.lr",
    "adam_beta1": "write optimizer.betas: [beta1, beta2]",
    "adam_beta2": "write optimizer.betas: [beta1, beta2]",
    "adam_epsilon": "write optimizer.eps",
    "lr_scheduler_type": "write scheduler.name",
    "lr_scheduler": "write scheduler.name",
    "warmup": "write scheduler.warmup_steps",
    "warmup_ratio": "write scheduler.warmup_percent, in percent",
    "max_grad_norm": "write trainer.gradient_clipping",
    "grad_clip": "write trainer.gradient_clipping",
    "clip_grad_norm": "write trainer.gradient_clipping",
    "muon_config": "write its keys in optimizer, each beginning with muon_; optimizer.name stays muonclip "
    "for QK-clip, which muon does not have",
    "dropout_prob": NO_DROPOUT,
    "dropout_rate": NO_DROPOUT,
    "attention_dropout": NO_DROPOUT,
    "hidden_dropout_prob": NO_DROPOUT,
    "attention_probs_dropout_prob": NO_DROPOUT,
    "dim": "write model.hidden_size",
    "d_model": "write model.hidden_size",
    "n_embd": "write model.hidden_size",
    "n_layers": "write model.num_hidden_layers",
    "n_layer": "write model.num_hidden_layers",
    "num_layers": "write model.num_hidden_layers",
    "n_heads": "write model.num_attention_heads",
    "n_head": "write model.num_attention_heads",
    "num_heads": "write model.num_attention_heads",
    "n_kv_groups": DECODER,
    "num_key_value_heads": DECODER,
    "d_k": DECODER,
    "d_v": DECODER,
    "ngpt": NGPT,
    "layer_norm_eps": "write model.norm_eps",
    "rms_norm_eps": "write model.norm_eps",
    "activation": "write model.hidden_act",
    "tie_weights": "write model.tie_word_embeddings",
    "flash_attention": "write model.attn_backend: flash_attn_varlen",
    "use_flash": "write model.attn_backend: flash_attn_varlen",
    "use_flash_attention": "write model.attn_backend: flash_attn_varlen",
    "use_flash_attention_2": "write model.attn_backend: flash_attn_varlen",
    "flash": "write model.attn_backend: flash_attn_varlen",
    "xformers_attention": "write model.attn_backend",
    "attn_implementation": "write model.attn_backend",
    "use_triton_sel": DECODER,
    "seq_len": "write dataset.max_seq_length and model.max_position_embeddings",
    "seq_length": "write dataset.max_seq_length and model.max_position_embeddings",
    "sequence_length": "write dataset.max_seq_length and model.max_position_embeddings",
    "context_length": "write dataset.max_seq_length and model.max_position_embeddings",
    "block_size": "write dataset.max_seq_length and model.max_position_embeddings",
    "max_seq_len": "write dataset.max_seq_length and model.max_position_embeddings",
    "precision": "write trainer.mixed_precision: bf16",
    "bf16": "write trainer.mixed_precision: bf16",
    "fp16": "write trainer.mixed_precision: bf16; fp16 is not offered, it needs loss scaling and overflows",
    "dtype": "write trainer.mixed_precision: bf16",
    "activation_checkpointing": "write trainer.gradient_checkpointing",
    "grad_checkpointing": "write trainer.gradient_checkpointing",
    "compile": "write trainer.torch_compile",
    "cut_cross_entropy": MASKED_LOSS,
    "steps": "write trainer.max_steps",
    "train_steps": "write trainer.max_steps",
    "num_train_steps": "write trainer.max_steps",
    "num_train_epochs": "write trainer.max_steps; `preflight --level data` tells how many epochs that is",
    "out_dir": "write trainer.output_dir",
    "run_name": "write wandb.name",
    "resume": "write trainer.resume_from_checkpoint: auto, or a path",
    "resume_from": "write trainer.resume_from_checkpoint: auto, or a path",
    "device": "remove the line; CUDA is used where there is one, and the profile says what it requires",
    "num_gpus": "write distributed.nproc_per_node",
    "n_gpus": "write distributed.nproc_per_node",
    "accelerate_config_file": SHARDING,
    "use_deepspeed": SHARDING,
    "mteb_task_type": EVALUATION,
    "mteb_batch_size": EVALUATION,
    "mteb_pooling": EVALUATION,
    "mteb_overwrite_results": EVALUATION,
    "pretraining_metadata": FINE_TUNING,
    "config_path": "remove the line; --config names the file",
    "dataloader_num_workers": "write dataset.num_workers",
    "tokenizer_name_or_path": "write tokenizer.name for a hub name, or tokenizer.path for a folder",
    "debug": "remove the line; pass --verbose to a command",
}

ADAMW_8BIT = "not offered: 8-bit moments save 6 bytes per parameter, 1.4 GiB of NeoBERT; write adamw"
PLATEAU = (
    "write cosine, linear, sqrt or 1-sqrt: with scheduler.decay_percent the rate stays at its peak first"
)
VALUES: dict[tuple[str, str | bool | int], str] = {
    (
        "trainer.mixed_precision",
        "fp16",
    ): "fp16 is not offered: it needs loss scaling and overflows; write bf16",
    (
        "trainer.mixed_precision",
        "float16",
    ): "fp16 is not offered: it needs loss scaling and overflows; write bf16",
    (
        "trainer.mixed_precision",
        "fp8",
    ): "not offered: the kernels here compute in bf16; write bf16",
    ("trainer.mixed_precision", "bfloat16"): "write bf16",
    ("trainer.mixed_precision", "float32"): "write fp32",
    ("task", "pretraining"): "write pretrain",
    ("task", "mlm"): "write pretrain",
    ("task", "glue"): "not offered: the only task is pretrain; AutoModelForSequenceClassification loads a "
    "checkpoint of task: pretrain",
    ("task", "contrastive"): "not offered: the only task is pretrain; sentence-transformers trains on a "
    "checkpoint of task: pretrain",
    ("trainer.max_steps", -1): "write the number of optimizer steps; `preflight --level data` tells how many "
    "an epoch has",
    ("trainer.metric_for_best_model", "loss"): "write eval/loss",
    ("trainer.metric_for_best_model", "eval_loss"): "write eval/loss",
    ("trainer.metric_for_best_model", "accuracy"): "write eval/accuracy",
    ("trainer.metric_for_best_model", "eval_accuracy"): "write eval/accuracy",
    ("model.attn_backend", "flash_attention_2"): "write flash_attn_varlen",
    ("model.attn_backend", "flash"): "write flash_attn_varlen",
    ("model.attn_backend", "eager"): "write sdpa",
    ("trainer.resume_from_checkpoint", True): "write auto",
    ("trainer.resume_from_checkpoint", False): "write never",
    ("trainer.mixed_precision", True): "write bf16",
    ("trainer.mixed_precision", False): "write fp32",
    ("optimizer.name", "adamw_8bit"): ADAMW_8BIT,
    ("optimizer.name", "soap"): "not offered: adamw, muon and muonclip are implemented; write one of them",
    ("scheduler.name", "wsd"): PLATEAU,
    ("scheduler.name", "constant"): PLATEAU,
    ("wandb.mode", "disabled"): "remove wandb from trackers, or write wandb.enabled: false",
}


def advice_for_key(path: Path) -> str:
    """Return the replacement of a key of another trainer or version; empty if there is none."""
    dotted = ".".join(map(str, path))
    if len(path) == 1 and dotted in SECTIONS:
        return SECTIONS[dotted]
    return KEYS.get(dotted) or NAMES.get(str(path[-1]), "")


def advice_for_value(dotted: str, value: object) -> str:
    """Return the replacement of a value of another trainer or version; empty if there is none."""
    if isinstance(value, str | bool):
        return VALUES.get((dotted, value), "")
    return VALUES.get((dotted, -1), "") if value == -1 else ""  # 1 and 0 would find True and False

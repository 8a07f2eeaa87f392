"""Keys of other trainers with one meaning in every section: the hint, and the names that it applies to.

Sources: `TrainingArguments` and language-model examples of transformers, accelerate, Lightning, composer and
llm-foundry, axolotl, LLaMA-Factory, TRL, litgpt, levanter, DeepSpeed.
"""

from __future__ import annotations

from collections.abc import Mapping

ANY_BATCH = "rows per device are trainer.per_device_train_batch_size, rows per step trainer.global_batch_size"
GLOBAL_BATCH = (
    "write trainer.global_batch_size; it is trainer.per_device_train_batch_size x "
    "trainer.gradient_accumulation_steps x processes"
)
MICROBATCH = "write trainer.per_device_train_batch_size; rows per step are trainer.global_batch_size"
NO_DROPOUT = "NeoBERT trains without dropout; remove the line"
ONE_CADENCE = "write trainer.save_steps, in optimizer steps"
SHARDING = "remove the line; processes are set with distributed.nproc_per_node and distributed.nnodes"
DECODER = "remove the line; NeoBERT is a bidirectional encoder with full attention"
MASKED_LOSS = "remove the line; trainer.masked_logits_only_loss: true computes the memory-saving loss"
BEST = "remove the line; trainer.metric_for_best_model keeps the best checkpoint as checkpoints/best"
NGPT = "not supported: nGPT is another architecture, and NeoBERT loaders cannot read it; remove the line"
FINE_TUNING = "not supported: no task has this setting; remove the line"
EVALUATION = "not supported: evaluate the checkpoint afterwards (`neobert-launch evaluate`); remove the line"
UPLOAD = "not supported: upload the checkpoint folder with `hf upload`; remove the line"
ADAPTERS = "write adapter.type: lora, for a task with labels"
QUANTISED = "not supported: weights are trained in fp32 or bf16; remove the line"
DECODERS = "not supported: chat templates are for decoder models; remove the line"
CHECKPOINT_OR_SIZES = (
    "write model.pretrained_checkpoint to start from a checkpoint folder; without the line, weights are new"
)
IS_ENCODER = "remove the line; model.type selects the model family"
BF16_ONLY = "write trainer.mixed_precision: bf16; fp16 is not supported, it needs loss scaling and overflows"
LAUNCHER = "remove the line; `neobert-launch train` takes --node-rank, --master-addr and --master-port"
TOKENIZER = "write tokenizer.name for a hub name, or tokenizer.path for a folder"
EPOCHS = "write trainer.max_epochs; the run also ends at trainer.max_steps"

BATCHES: Mapping[str, str] = {
    ANY_BATCH: "batch_size",
    GLOBAL_BATCH: "train_batch_size global_train_batch_size total_batch_size effective_batch_size",
    MICROBATCH: "device_train_microbatch_size microbatch_size",
    "write trainer.per_device_train_batch_size": "micro_batch_size micro_batch_size_per_gpu "
    "train_micro_batch_size_per_gpu per_device_batch_size per_gpu_train_batch_size",
    "write trainer.per_device_eval_batch_size": "eval_batch_size device_eval_batch_size "
    "device_eval_microbatch_size per_gpu_eval_batch_size",
    "rows per device are trainer.per_device_eval_batch_size": "global_eval_batch_size",
    "write trainer.gradient_accumulation_steps": "accumulate_grad_batches grad_accum_steps "
    "gradient_accumulation grad_accum",
    "write dataset.max_seq_length and model.max_position_embeddings": "seq_len seq_length sequence_length "
    "context_length block_size max_seq_len",
    "write dataset.max_seq_length": "sequence_len cutoff_len max_packed_sequence_len max_length",
    "write datacollator.pack_sequences": "packing sample_packing",
    "remove the line; packed documents are always isolated from each other": "pack_sequences_mode",
    "remove the line; there is one way of packing": "packing_strategy",
    "remove the line; evaluation text is packed like training text": "eval_sample_packing eval_packing",
    "remove the line; packed rows are always full": "pad_to_sequence_len",
    "remove the line; packed rows need no padding": "pad_to_max_length",
    "remove the line; documents are packed, so there is no padding to reduce": "group_by_length",
    "remove the line; documents are packed": "length_column_name",
    "remove the line; packed rows have no incomplete last batch": "dataloader_drop_last",
    "remove the line; `neobert-launch plan` predicts the memory of a batch size": "auto_find_batch_size",
}
LOOP: Mapping[str, str] = {
    "write trainer.max_steps": "steps train_steps num_train_steps num_steps max_train_steps total_steps "
    "num_training_steps max_iters train_iters",
    EPOCHS: "num_train_epochs num_epochs epochs",
    "write trainer.max_steps, or trainer.max_epochs": "max_duration",
    "not supported: set trainer.max_steps; `neobert-launch plan` shows the tokens per step": "max_tokens",
    ONE_CADENCE: "save_every save_every_n save_every_n_steps save_interval checkpoint_interval ckpt_every",
    "write trainer.save_steps; 0 saves only the final checkpoint": "save_strategy",
    "write trainer.save_steps and trainer.save_total_limit": "checkpointer",
    "write trainer.save_total_limit": "max_ckpt keep_last_n save_num_checkpoints_to_keep",
    "write trainer.save_keep_every": "keep_every keep_every_n_steps",
    "write trainer.async_save": "asynchronous_save async_checkpointing",
    "write trainer.output_dir": "out_dir save_folder save_dir",
    "remove the line; checkpoints are safetensors": "save_safetensors",
    "remove the line; checkpoints always contain the state for a resume": "save_only_model",
    "write trainer.resume_from_checkpoint": "resume resume_from",
    "write trainer.eval_steps": "eval_every steps_per_eval",
    "write trainer.eval_steps, in optimizer steps": "eval_interval",
    "write trainer.eval_steps; 0 evaluates only at the end": "eval_strategy evaluation_strategy",
    "write trainer.eval_max_batches": "eval_subset_num_batches eval_iters limit_val_batches",
    "not supported: trainer.eval_max_batches limits an evaluation, in microbatches; remove the line": (
        "max_eval_samples max_val_samples"
    ),
    "not supported: set trainer.save_steps, in optimizer steps": "saves_per_epoch",
    "not supported: set trainer.eval_steps, in optimizer steps": "evals_per_epoch",
    "write trainer.logging_steps": "log_every log_interval steps_per_print",
    "write trainer.logging_steps, in optimizer steps": "logging_strategy console_log_interval",
    "remove the line; step 0 is evaluated, and logging_steps sets the rest": "logging_first_step",
    BEST: "load_best_model_at_end",
    "remove the line; `neobert-launch train` trains": "do_train",
    "remove the line; trainer.eval_steps sets when the run is evaluated": "do_eval",
    EVALUATION: "do_predict mteb_task_type mteb_batch_size mteb_pooling mteb_overwrite_results",
    "write seed at the top level": "default_seed random_seed global_seed manual_seed",
    "remove the line; seed fixes the order of the data as well": "data_seed",
    "remove the line; a resumed run is bit-exact without this setting": "full_determinism",
}
OPTIMIZATION: Mapping[str, str] = {
    "write optimizer.lr": "learning_rate max_lr",
    "write scheduler.final_lr_ratio, the floor as a share of optimizer.lr": "min_lr alpha_f",
    "write scheduler.final_lr_ratio": "min_lr_rate min_lr_ratio",
    "write scheduler.final_lr_ratio for min_lr_rate, scheduler.warmup_steps for num_warmup_steps": (
        "lr_scheduler_kwargs"
    ),
    "write scheduler.name": "lr_scheduler_type lr_scheduler",
    "write scheduler.warmup_steps": "warmup num_warmup_steps lr_warmup_steps",
    "write scheduler.warmup_percent, in percent": "warmup_ratio warmup_proportion warmup_pct",
    "write scheduler.warmup_percent, in percent, or scheduler.warmup_steps": "t_warmup",
    "write optimizer.name: adamw, adam, lion, muon or muonclip": "optim",
    "write optimizer.betas: [beta1, beta2]": "adam_beta1 adam_beta2",
    "write optimizer.eps": "adam_epsilon",
    "write its keys in optimizer, each beginning with muon_; optimizer.name stays muonclip "
    "for QK-clip, which muon does not have": "muon_config",
    "write trainer.gradient_clipping": "max_grad_norm grad_clip clip_grad_norm max_norm",
    "not supported: the loss is the plain cross-entropy; remove the line": "label_smoothing_factor",
    FINE_TUNING: "pretraining_metadata neftune_noise_alpha",
    "write trainer.mixed_precision": "precision bf16 dtype torch_dtype",
    BF16_ONLY: "fp16",
    "remove the line; evaluations use trainer.mixed_precision": "fp16_full_eval bf16_full_eval",
    QUANTISED: "load_in_8bit load_in_4bit",
    MASKED_LOSS: "cut_cross_entropy",
}
MODEL: Mapping[str, str] = {
    CHECKPOINT_OR_SIZES: "model_name_or_path base_model base_model_config load_path initial_checkpoint_dir "
    "starting_checkpoint_load_path pretrained_model_name pretrained_model_name_or_path initialize_from_hf",
    "write model.pretrained_checkpoint for weights to start from, trainer.output_dir for new checkpoints": (
        "checkpoint_dir"
    ),
    "weights are new without model.pretrained_checkpoint; remove the line": "reinit_weights use_pretrained",
    "not supported: weights are read from a folder, which has no revisions; remove the line": (
        "model_revision"
    ),
    "write the sizes as keys of model": "model_config attn_config",
    IS_ENCODER: "model_type is_mistral_derived_model is_llama_derived_model",
    NO_DROPOUT: "dropout_prob dropout_rate attention_dropout hidden_dropout_prob "
    "attention_probs_dropout_prob",
    "write model.hidden_size": "dim d_model n_embd",
    "write model.num_hidden_layers": "n_layers n_layer num_layers num_transformer_layers",
    "write model.num_attention_heads": "n_heads n_head num_heads",
    DECODER: "n_kv_groups num_key_value_heads d_k d_v use_triton_sel",
    NGPT: "ngpt",
    "write model.norm_eps": "layer_norm_eps rms_norm_eps",
    "write model.hidden_act": "activation",
    "write model.tie_word_embeddings": "tie_weights tie_embeddings",
    "write model.attn_backend: flash_attn_varlen": "flash_attention use_flash use_flash_attention "
    "use_flash_attention_2 flash",
    "write model.attn_backend": "xformers_attention attn_implementation",
    "write model.kernel_backend: liger": "use_liger_kernel",
    "write trainer.gradient_checkpointing": "activation_checkpointing grad_checkpointing",
    "remove the line; trainer.gradient_checkpointing_every_n sets how often": "gradient_checkpointing_kwargs",
    "write trainer.torch_compile": "compile",
    "remove the line; trainer.torch_compile_backend names the compiler": "torch_compile_mode",
    "remove the line; weights are read from memory-mapped safetensors files": "low_cpu_mem_usage",
    f"{ADAPTERS}": "use_peft use_lora finetuning_type",
    f"{ADAPTERS}, and adapter.r": "lora_r lora_rank",
    f"{ADAPTERS}, and adapter.alpha": "lora_alpha",
    f"{ADAPTERS}, and adapter.dropout": "lora_dropout",
    f"{ADAPTERS}, and adapter.target_modules": "lora_target_modules lora_target",
    f"{ADAPTERS}; all linear layers of the blocks are its default": "lora_target_linear",
    "not supported: adapters start from zero; merge the adapter, then set "
    "model.pretrained_checkpoint": "lora_model_dir adapter_name_or_path",
    DECODERS: "train_on_inputs chat_template",
    "not supported: preference training is for decoder models; remove the line": "reward_model dpo_beta",
}
DATA: Mapping[str, str] = {
    "write dataset.path": "train_file",
    "write dataset.path for files of text; MDS shards are not read": "data_local data_remote",
    "set dataset.path to a folder with train and validation files": "validation_file",
    "write dataset.name": "dataset_name",
    "write dataset.config": "dataset_config_name",
    "write dataset.path for files, dataset.name for the Hub, dataset.mixture for several": "datasets",
    "write dataset.path for files, dataset.name and dataset.config for the Hub": "pretraining_dataset",
    "write dataset.validation_split, as a fraction": "validation_split_percentage",
    "write dataset.validation_split for a fraction, dataset.eval_samples for a number": "val_set_size",
    "write dataset.train_split, such as train[:1000]": "max_train_samples max_samples",
    "write dataset.cache_dir": "dataset_prepared_path",
    "write dataset.num_proc": "preprocessing_num_workers dataset_processes",
    "write dataset.num_workers": "dataloader_num_workers",
    "write datacollator.mlm_probability": "pretraining_prob mlm_prob mask_prob",
    "write dataset.document_per_line": "line_by_line",
    "remove the line; changed text is always prepared again": "overwrite_cache",
    "remove the line; only the columns of the task are read": "remove_unused_columns",
    "remove the line; batches are pinned wherever there is a GPU": "dataloader_pin_memory",
    "remove the line; the data loader's threads live as long as the run": "dataloader_persistent_workers",
    TOKENIZER: "tokenizer_name tokenizer_config tokenizer_name_or_path tokenizer_dir",
    "write tokenizer.revision": "tokenizer_revision",
    "remove the line; only fast tokenizers are used": "use_fast_tokenizer",
    "remove the line; the tokenizer's files define its type": "tokenizer_type",
    "remove the section; the tokenizer's files name them": "special_tokens",
}
MACHINE: Mapping[str, str] = {
    "write distributed.nproc_per_node": "num_gpus n_gpus devices",
    "write distributed.nproc_per_node (num_processes / num_machines)": "num_processes",
    "write distributed.nnodes": "num_machines num_nodes",
    LAUNCHER: "machine_rank main_process_ip main_process_port",
    "remove the line; CUDA_VISIBLE_DEVICES selects GPUs": "gpu_ids",
    SHARDING: "fsdp_config local_rank accelerate_config_file use_deepspeed zero_optimization "
    "deepspeed_config distributed_type compute_environment main_training_function same_network rdzv_backend",
    "remove the line; a GPU is used if there is one, and the profile names the required device": "device",
    "remove the line; a profile that requires a cpu keeps the run on it": "use_cpu no_cuda",
    "remove the line; NCCL on GPUs, gloo on CPUs": "ddp_backend",
    "remove the line; every parameter is used in every step": "ddp_find_unused_parameters",
    "write watchdog.step_limit_s": "ddp_timeout",
}
RECORDS: Mapping[str, str] = {
    "write trackers, such as trackers: [wandb]; metrics.jsonl is always written": "report_to",
    "write wandb.project": "wandb_project",
    "write wandb.entity": "wandb_entity",
    "write wandb.name": "wandb_name run_name",
    "remove the line; the norm of the gradients is always recorded": "wandb_watch",
    "remove the line; a resumed run continues its Weights & Biases run": "wandb_run_id",
    "remove the line; checkpoints stay in trainer.output_dir": "wandb_log_model",
    "remove the line; it is always recorded": "log_grad_norm",
    "remove the line; train/weight_norm is in every line of metrics": "log_weight_norms",
    "remove the line; accuracy is measured in evaluations": "log_train_accuracy",
    "remove the line; tokens are always counted": "include_num_input_tokens_seen include_tokens_per_second",
    "remove the line; everything is written to trainer.output_dir": "logging_dir",
    "remove the line; the launcher shows progress on terminals only": "disable_tqdm progress_bar "
    "log_to_console",
    "remove the line; pass --verbose to a command": "debug log_level log_level_replica",
    "remove the line; unknown keys are always errors": "strict",
    "remove the line; --config names the file": "config_path",
    UPLOAD: "push_to_hub hub_model_id hub_token hub_strategy",
}
TABLES = (BATCHES, LOOP, OPTIMIZATION, MODEL, DATA, MACHINE, RECORDS)
NAMES: Mapping[str, str] = {
    name: answer for table in TABLES for answer, names in table.items() for name in names.split()
}

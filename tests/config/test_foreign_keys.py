"""Keys of other trainers: the key that means the same here, or a reason why there is none; never a guess."""

from pathlib import Path

import pytest

from neobert.config import ConfigError
from neobert.config.key_suggestions import suggest_key
from neobert.config.migrated_keys import NO_SUCH, rename_table
from neobert.config.optimizers import OPTIMIZERS
from profiles.registry import resolve_run

START = (
    "write model.pretrained_checkpoint, with model.type: hf for a model of transformers; "
    "`neobert-launch init --from MODEL` writes both"
)
SHARDS = "write distributed.mode: fsdp2 to shard the model, and distributed.nproc_per_node, in its place"
BATCH = "it is trainer.per_device_train_batch_size x trainer.gradient_accumulation_steps x processes"
DECAY = rename_table()["values"]["optimizer.name:decoupled_adamw"]


def issues_of(text: str, tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "run.yaml"
    path.write_text(f"profile: cpu\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigError) as caught:
        resolve_run(None, [path])
    return {issue.path: issue.hint for issue in caught.value.issues}


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        # batches: rows per step are not rows per device
        ("trainer: {train_batch_size: 512}", f"write trainer.global_batch_size: 512; {BATCH}"),
        ("global_train_batch_size: 4096", f"write trainer.global_batch_size: 4096; {BATCH}"),
        ("batch_size: 8", "rows per device are trainer.per_device_train_batch_size, rows per step "
         "trainer.global_batch_size"),
        # names of other things
        ("optimizer: {type: AdamW}", f"write optimizer.name: {' or '.join(OPTIMIZERS)}"),
        ("stage: sft", "write task: sft for conversations, or task: causal for text"),
        ("model: {flavor: 8B}",
         "remove the line; the sizes are keys of model, and model.config names a config.json"),
        # precision
        ("bf16: false", "write trainer.mixed_precision: fp32"),
        ("bf16: true", "write trainer.mixed_precision: bf16"),
        ("precision: amp_bf16", "write trainer.mixed_precision: bf16"),
        ("profiler: {enabled: false}", "write trainer.profile_steps for a trace of some steps, in its place"),
        ("dtype: float16", "write trainer.mixed_precision: bf16 or fp32 or no"),
        # first weights
        ("reinit_weights: true", "weights are new without model.pretrained_checkpoint; remove the line"),
        # data and lengths
        ("label_column_name: mood", "write classification.label_column, or token_classification.label_column "
         "for labels of words"),
        ("prompts: 'query: '", 'write contrastive.query_prompt: "query: " and contrastive.document_prompt: '
         '"query: "'),
        ("dataset_name: chats.jsonl", "write dataset.path: chats.jsonl"),
        ("dataset_name: owner/texts", "write dataset.name: owner/texts"),
        ("max_samples: 1000", 'write dataset.train_split: "train[:1000]"'),
        ("val_size: 0.1", "write dataset.validation_split: 0.1"),
        # adapters
        ("finetuning_type: lora", "write adapter.type: lora"),
        ("finetuning_type: full", "remove the line; all weights are trained unless adapter is set"),
        ("use_peft: true", "write adapter.type: lora"),
        ("lora_attn_modules: [q_proj, output_proj]", "write adapter.target_modules: [q_proj, o_proj]"),
        ("lora_attn_modules: all", "write adapter.target_modules"),
        ("apply_lora_to_mlp: true", "add gate_proj, up_proj and down_proj to adapter.target_modules, which "
         "lists all layers with an adapter"),
        ("apply_lora_to_mlp: false", "remove the line; adapter.target_modules lists all layers with an "
         "adapter"),
        ("lora_target_modules: all-linear", "remove the line; adapter.target_modules: null, the default, is "
         "all linear layers of the blocks"),
        # tasks
        ("task: regression", "write classification, and classification.problem: regression"),
        ("task: classification\nclassification: {problem: multi_label_classification}", "not supported: a "
         "text has one class; write classes, and train a run for each label, on a column of 0 and 1"),
        ("default_system_message: Be brief.", 'write sft.system_prompt: "Be brief."'),
        ("excess_length_strategy: drop", "write dataset.long_documents: drop"),
        # Composer's times
        ("eval_interval: 4000ba", "write trainer.eval_steps: 4000"),
        ("max_duration: 2ep", "write trainer.max_epochs: 2"),
        ("max_duration: 4000_ba", "write trainer.max_steps, or trainer.max_epochs"),
        ("max_duration: 1719_000_000_000tok", "write trainer.max_steps, or trainer.max_epochs"),
        ("scheduler: {t_decay: 1_000ba}", "write scheduler.decay_steps: 1000"),
        # what TrainingArguments writes with every default
        ("report_to: []", "remove the line; no tracker is used unless trackers names it"),
        ("report_to: mlflow", "write trackers: [mlflow]"),
        ("label_smoothing_factor: 0.0", "remove the line; the loss is the plain cross-entropy"),
        ("eval_delay: 0", "remove the line; evaluations begin at step 0"),
        ("eval_delay: 500", "not supported: evaluations begin at step 0; remove the line"),
        ("ddp_bucket_cap_mb: null", "remove the line; it has no value"),
        ("accelerator_config: {split_batches: false}", "remove the section; processes are set with "
         "distributed.nproc_per_node and distributed.nnodes"),
        ("model: {n_kv_heads: 2}", "write model.num_key_value_heads, for a decoder"),
        ("model: {n_kv_groups: 2}", "write model.num_kv_heads, with model.type: nsa"),
        ("model: {d_k: 16}", "write model.head_dim, with model.type: nsa"),
        # processes
        ("deepspeed: zero2.json", SHARDS),
        # schedule and optimizer
        ("lr_scheduler_kwargs: {min_lr_rate: 0.1}", "write scheduler.final_lr_ratio: 0.1"),
        ("lr_scheduler_type: cosine_with_min_lr", "write scheduler.name: cosine"),
        ("lr_scheduler_type: constant", "write scheduler.name: cosine, linear, sqrt or 1-sqrt; "
         "scheduler.decay_percent keeps the peak rate until the decay"),
        ("warmup_steps: 0.06", "write scheduler.warmup_percent: 6"),
        ("scheduler: {warmup_steps: 0.06}", "write scheduler.warmup_percent: 6"),
        ("optimizer: {name: decoupled_adamw}", DECAY),
        # sections as text
        ("optimizer: decoupled_adamw", DECAY),
        ("adapter: lora", "write adapter.type: lora"),
        ("model: answerdotai/ModernBERT-base", START),
        ("dataset: my.txt", "write dataset.path for files, or dataset.name for the Hub"),
        # counts of evaluations and of training
        ("eval: {max_iters: 100}", "write trainer.eval_max_batches: 100"),
        ("resume: false", "write trainer.resume_from_checkpoint: never"),
        # machines, saves, sizes, seeds, names
        ("rl: dpo", "not supported: preferences and RL are what TRL trains; remove rl"),
        # Lightning
        ("trainer: {gradient_clip_val: 1.0}", "write trainer.gradient_clipping: 1.0"),
    ],
)  # fmt: skip
def test_a_key_of_another_trainer_is_answered_with_its_counterpart(text, hint, tmp_path):
    assert list(issues_of(text, tmp_path).values())[-1:] == [hint]


OTHER_WORDS = """
log_level packing_strategy reinit_weights reward_model attn_config beta max_samples default_seed lora_rank
num_processes checkpoint_dir pretraining_dataset model_revision alpha name path config type enabled data_local
max_tokens algorithms callbacks ref_model seq_parallel tokens_per_step eval_first run_eval shuffle_seed
eval_metrics moe_freq init_device n_positions dataset_kwargs model_init_kwargs train_kwargs save_overwrite
load_strict device_map output_format context_parallel_size
"""


@pytest.mark.parametrize("section", ["", "training.", "trainer.", "mine."])
def test_a_name_of_other_words_is_never_a_misspelling(section):
    suggested = {key: suggest_key(section + key) for key in OTHER_WORDS.split()}
    assert {key: near for key, near in suggested.items() if near} == {}


def test_a_key_that_nobody_knows_is_not_simply_removed(tmp_path):
    assert issues_of("data_order_file: order.npy", tmp_path) == {"data_order_file": NO_SUCH}

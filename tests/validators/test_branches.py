"""What a rule says beyond its fixture: one row a branch, with the neighbour that silences it."""

import re
from typing import Any

import pytest

from tests.validators.judging import found, run_of
from validators.facts import PLUGGED_SOURCE
from validators.finding import Severity, Status

RESUME = {
    "config.trainer.resume_from_checkpoint": "auto",
    "facts.resume.exists": True,
    "facts.resume.is_verified": True,
    "facts.resume.target": "checkpoints/40000",
}
PACKED_ON_CPU = {"profile": "cpu-demo"}
FAST = {"measured.step_time_s": 0.001}
OVERLAY = {"profile": "cpu-demo", "facts.disk.filesystem": "overlay"}
ACCELERATE = {"path": "a.yaml", "is_named": False, "distributed_type": "", "fsdp_version": "", "error": ""}
TWO_PROCESSES = {"config.distributed.nproc_per_node": 2, "config.dataset.num_workers": 1}
GPU = {
    "index": 0,
    "uuid": "GPU-0",
    "name": "NVIDIA A100-SXM4-80GB",
    "compute_capability": [8, 0],
    "memory_total_mib": 81920,
    "memory_used_mib": 4,
    "driver_version": "580.10",
}
HOPPER = GPU | {"name": "NVIDIA H200", "compute_capability": [9, 0]}
AUTO = {"config.model.attn_backend": "auto", "config.model.kernel_backend": "auto"}
ALL_BUT_TRITON = {"torch": "2.13", "flash-attn": "2.8"}
WITH_TRITON = ALL_BUT_TRITON | {"triton": "3.6"}

HEALTH = {
    "index": 0,
    "uuid": "GPU-0",
    "is_ecc_enabled": True,
    "uncorrected_errors": 0,
    "retired_pages": None,
    "is_retirement_pending": None,
    "is_remap_pending": False,
    "has_remap_failed": False,
    "recovery_action": "none",
    "throttle_reasons": [],
    "pcie_generation": 4,
    "pcie_generation_max": 4,
    "pcie_width": 16,
    "pcie_width_max": 16,
    "num_nvlinks": 12,
}
TWO_HEALTHY = TWO_PROCESSES | {"facts.gpu_health": [HEALTH, HEALTH]}
SAME_CONFIG = TWO_PROCESSES | {"digest": "c0ffee"}
TELLS_NOTHING = {"facts.gpu_health.0.is_remap_pending": None, "facts.gpu_health.0.recovery_action": None}

SHORT_ON_GPU = {"profile": "gpu", "config.trainer.max_steps": 100}
NUMBER = re.compile(r"\d[\d,.]*")
CONVERTED = {"config.torchao.enable": True}
SCORED = {
    "config.task": "contrastive",
    "config.contrastive.score_column": "score",
    "config.dataset.long_documents": "truncate",
}
WIDE = {"hidden_size": 4096, "num_hidden_layers": 40, "num_attention_heads": 32, "intermediate_size": 11008}
OF_5_BILLION = {
    "config.model": WIDE,
    "config.distributed.nproc_per_node": 4,
    "config.trainer.per_device_train_batch_size": 1,
}
BEATS_TORCH = {
    "recipe_step_s": 0.105, "recipe_loss": 7.0, "recipe_kernels": "torch, torch_varlen",
    "bf16_step_s": 0.0931, "bf16_loss": 7.0, "bf16_kernels": "fused, triton_packed",
}  # fmt: skip
"""A step that torch's modules take 120 ms for in bf16, and this project's kernels 93.1."""
EMULATED = CONVERTED | {"config.torchao.recipe": "mxfp8_emulated"}
ENGINE, QUARTET = {"config.transformer_engine.enable": True}, {"config.quartet2.enable": True}
TENSORWISE = CONVERTED | {"config.torchao.recipe": "float8_tensorwise"}
GATHERS = "config.torchao.enable_fsdp_float8_all_gather"
CAPABILITY = "facts.gpus.0.compute_capability"
ADAPTED = {
    "config.task": "classification",
    "config.dataset.long_documents": "truncate",
    "config.adapter.type": "lora",
}
CONTINUED = RESUME | {
    "config.trainer.resume_from_checkpoint": "never",
    "config.trainer.continue_from": "runs/first",
    "facts.resume.is_continued": True,
    "facts.resume.target": "runs/first/checkpoints/800",
    "facts.resume.step": 800,
    "facts.resume.stable_steps": [50, 800],
    "facts.resume.is_elsewhere": True,
}
OTHER_TOKENIZER = CONTINUED | {"facts.resume.tokenizer_digest": "0123456789abc"}
UNINSPECTED = {"facts.inspection": None}
SAME_TEXT = RESUME | {
    "facts.resume.data_fingerprint": "text",
    "facts.inspection.prepared.fingerprint": "text",
    "facts.resume.tokenizer_digest": "tokens",
    "facts.inspection.prepared.tokenizer_digest": "tokens",
}
OTHER_TEXT = SAME_TEXT | {"facts.resume.data_fingerprint": "other"}
WEIGHTS = {
    "config.model.pretrained_checkpoint": "runs/first/checkpoints/latest",
    "facts.data.weights": "runs/first/checkpoints/latest",
    "facts.data.weights_tokens": 30000,
}
INSPECTED = WEIGHTS | {"facts.inspection.prepared.weights_tokens": 20000}
RENUMBERED = WEIGHTS | {"facts.data.renumbered_tokens": 1234}
DECAYED = CONTINUED | {"facts.resume.step": 900}

FEW_TEXTS = {
    "config.dataset.path": "few.csv",
    "config.dataset.name": None,
    "config.dataset.long_documents": "truncate",
    "config.trainer.per_device_train_batch_size": 8,
    "facts.text": [{"source": "few.csv", "exists": True, "formats": {".csv": 1}, "documents": 9}],
}

STREAMED = {
    "config.dataset.streaming": True,
    "facts.text": [{"source": "web", "exists": True, "formats": {".jsonl": 2}}],
}

Row = tuple[str, dict[str, Any], str, Any, Any, str]

ROWS: list[Row] = [
    # code, base, what varies, failing, passing, part of the message
    ("ATT001", {"config.model.attn_backend": "torch_varlen"},
     "config.trainer.mixed_precision", "no", "bf16", "bfloat16"),
    ("ATT001", {"config.model.attn_backend": "auto"},
     "facts.software.packages", {}, {"torch": "2.13"}, "torch"),
    ("ATT001", {}, "facts.gpus.0.compute_capability", [7, 5], [8, 0], "compute capability 8.x to 12.x"),
    ("ATT001", {}, "config.model.num_attention_heads", 2, 3, "that is a multiple of 8"),
    ("ATT001", {"config.model.attn_backend": "flex", "config.model.kernel_backend": "torch"},
     "facts.software.packages", {"torch": "2.13"}, {"torch": "2.13", "triton": "3.6"}, "triton"),
    ("ATT001", {"facts.gpus": [HOPPER], "config.model.attn_backend": "flash_attn_varlen",
                "config.model.kernel_backend": "torch"}, "facts.software.packages",
     {"torch": "2.13"}, {"torch": "2.13", "flash-attn-3": "3.0"}, "flash_attn_3 needs flash-attn-3"),
    ("ATT001", {"facts.software.packages": {"flash-attn-4": "4.0"}},
     "facts.gpus.0.compute_capability", [8, 0], [9, 0], "flash_attn_4 needs compute capability 9.x to 10.x"),
    ("ATT003", PACKED_ON_CPU, "config.model.attn_backend", "flex", "sdpa", "needs CUDA"),
    ("ATT004", {"config.model.attn_backend": "sdpa"},
     "config.datacollator.pack_sequences", True, False, "packed documents"),
    ("ATT004", {"config.model": {"type": "hf", "architecture": "bert"}},
     "config.model.attention_dropout", None, 0.0, "has attention dropout, which only sdpa computes"),
    ("ATT005", AUTO | {"config.model.kernel_backend": "triton",
     "config.trainer.gradient_checkpointing_every_n": 2}, "config.trainer.gradient_checkpointing",
     True, False, "triton needs trainer.gradient_checkpointing: false"),
    ("ATT006", {"config.trainer.torch_compile": True, "config.trainer.mixed_precision": "fp32"},
     "config.model.attn_backend", "auto", "flex", "cannot be compiled"),
    ("ATT007", AUTO, "facts.software.packages", ALL_BUT_TRITON, WITH_TRITON, "triton needs triton"),
    ("ATT007", AUTO | {"facts.gpus": [HOPPER]}, "facts.software.packages",
     WITH_TRITON, WITH_TRITON | {"quack-kernels": "0.6"}, "needs quack-kernels, which is"),
    ("ATT007", AUTO | {"facts.gpus": [HOPPER], "config.dataset.max_seq_length": 4096},
     "facts.software.packages",
     WITH_TRITON | {"quack-kernels": "0.6"}, WITH_TRITON | {"quack-kernels": "0.6", "flash-attn-4": "4.0"},
     "rows of 4,096 tokens will run on triton_packed"),
    ("ATT003", PACKED_ON_CPU, "config.model.attn_backend", "torch_varlen", "sdpa", "needs CUDA"),
    ("ATT003", PACKED_ON_CPU | {"config.datacollator.pack_sequences": False},
     "config.model.attn_backend", "torch_varlen", "sdpa", "needs CUDA"),
    ("BUD001", FAST, "config.trainer.max_steps", 18899, 18900, "tokens per parameter"),
    ("CFG013", {"config.trainer.gradient_checkpointing_every_n": 2},
     "config.trainer.gradient_checkpointing", False, True, "gradient_checkpointing is false"),
    ("CFG013", {"config.trainer.batch_size_warmup_steps": 9},
     "config.trainer.gradient_accumulation_steps", 1, 2, "a step has one microbatch"),
    ("CFG013", {"config.trainer.sequence_length_warmup_steps": 9},
     "config.trainer.sequence_length_warmup_length", 1024, 1023, "no document is longer than 1,024 tokens"),
    ("CFG013", {"config.trainer.sequence_length_warmup_steps": 9},
     "config.datacollator.pack_sequences", False, True, "padded rows are not split into pieces"),
    ("CFG013", FAST | {"config.pretraining": None}, "config.trainer.sequence_length_warmup_length", 128, 64,
     "trainer.sequence_length_warmup_steps is 0"),
    ("CFG013", {"config.model.attn_backend": "torch_varlen"},
     "config.datacollator.pack_sequences", False, True, "padded rows use sdpa"),
    ("CFG013", {"profile": "nsa-smoke"}, "config.dataset.max_seq_length", 1024, 1025,
     "all are selected and attention is dense"),
    ("CFG013", {"config.distributed.reshard_after_forward": True},
     "config.distributed.mode", "replicated", "fsdp2", "distributed.mode replicated shards nothing"),
    ("CFG013", {"config.dataset.revision": "0ff1ce"},
     "config.dataset.name", "builtin:python-docs", "some/text", "dataset.revision has no effect"),
    ("CFG013", {"config.dataset.validation_split": 0.02},
     "config.dataset.eval_samples", 256, None, "takes precedence"),
    ("CFG005", FAST, "profile", None, "a100-prod", "no `profile:` is set"),
    ("OPT005", FAST, "config.trainer.z_loss", 0.005, 0.0048, "times the logit gradient"),
    ("OPT005", FAST, "config.trainer.z_loss", 0.05, 1e-4, "at most 0.1"),
    ("MOD005", {"config.model.decoder_init_range": 0.05},
     "config.model.init", "scaled", "published", "does not read model.decoder_init_range"),
    ("CKP002", {"config.trainer.max_steps": 1000} | FAST,
     "measured.step_time_s", 14.5, 14.3, "a crash can lose"),
    ("CKP004", {}, "facts.disk.free_inodes", 459, 460, "inodes"),
    ("CKP004", {"facts.disk.free_mib": 14793, "config.trainer.resume_from_checkpoint": "auto"},
     "facts.output.checkpoint_steps", [], [1000], "checkpoints need"),
    ("CKP004", {"facts.disk.free_mib": 14793, "facts.output.checkpoint_steps": [1000]},
     "config.trainer.resume_from_checkpoint", "never", "auto", "checkpoints need"),
    ("CKP004", {"facts.disk.free_mib": 14793, "config.trainer.resume_from_checkpoint": "auto"},
     "facts.output.num_set_aside", 0, 1, "checkpoints need"),
    ("CKP005", {}, "facts.disk.is_writable", False, True, "written to"),
    ("CKP005", {}, "facts.disk.temporary_folder", "/var/tmp", "", "in /var/tmp, whose files are deleted"),
    ("CKP005", {"facts.disk.temporary_folder": "/tmp"}, "profile", "a100-prod", "cpu", "in /tmp, whose file"),
    ("CKP005", {}, "facts.disk.rename_works", False, True, "renamed in"),
    ("CKP005", {}, "facts.disk.fsync_works", False, True, "synced"),
    ("CKP005", {"facts.disk.is_writable": False}, "facts.disk.free_mib", 4, 3, "written to"),
    ("CKP007", RESUME, "facts.resume.step", 50000, 49999, "trainer.max_steps is 50,000"),
    ("CKP007", RESUME | {"facts.resume.lacks_line": True},
     "facts.resume.step", 50001, 50000, "trainer.max_steps is 50,000"),
    ("CKP007", RESUME,
     "facts.resume.structural_differences", ["seed: 1 in it"], [], "a different run: seed: 1 in it"),
    ("CKP007", RESUME | {"facts.resume.step": 40_000},
     "facts.resume.passed_by", ["50000: weights is missing"], [],
     "checkpoint 50000: weights is missing; the run resumes from step 40,000"),
    ("CKP007", {"facts.resume.exists": False},
     "facts.resume.selector", "checkpoints/9", "auto", "does not exist"),
    ("CKP007", {"facts.resume.exists": False, "facts.resume.target": "/run/checkpoints/latest"},
     "facts.resume.selector", "latest", "auto", "/run/checkpoints/latest does not exist"),
    ("CKP007", CONTINUED | {"facts.resume.exists": False, "facts.resume.selector": "auto"},
     "facts.resume.is_continued", True, False, "runs/first/checkpoints/800 does not exist"),
    ("CKP007", CONTINUED,
     "facts.resume.structural_differences", ["model.hidden_size: 1 in it"], [], "model.hidden_size: 1 in it"),
    ("CKP007", CONTINUED | {"facts.resume.source_reason": "old.txt: does not exist"},
     "config.trainer.eval_source_text", True, False, "the source text cannot be read: old.txt: "),
    ("CKP007", CONTINUED | {"facts.resume.source_reason": "old.txt: does not exist"},
     "facts.resume.is_continued", True, False, "the source text cannot be read: old.txt: does not exist"),
    ("CKP007", CONTINUED,
     "facts.resume.source_reason", "old.txt: does not exist", "", "read: old.txt: does not exist"),
    ("CKP007", CONTINUED, "facts.resume.source_reason", PLUGGED_SOURCE, "", PLUGGED_SOURCE),
    ("PLG002", {"config.plugins.dataset": "yaml:safe_load", "facts.plugins": {"failures": [], "metrics": []}},
     "config.trainer.metric_for_best_model", "eval/cost", "eval/loss", "but plugins.metrics return none"),
    ("PLG004", {"config.plugins.dataset": "yaml:safe_load"},
     "config.dataset.streaming", True, False, "but dataset.streaming is true"),
    ("PLG004", {"config.task": "classification", "config.dataset.long_documents": "truncate",
                "config.plugins.metrics": ["yaml:dump"],
                "config.trainer.metric_for_best_model": "eval/cost"},
     "config.trainer.greater_is_better", None, False, "has no default direction"),
    ("SFT002", {"config.task": "sft"}, "facts.inspection.prepared.faults",
     [{"split": "train", "kind": "outside", "count": 2, "first": 7, "detail": "a role header"}], [],
     "2 training conversations, the first is number 7 in this split: a role header"),
    ("SFT002", {"config.task": "sft"}, "facts.inspection.prepared.faults",
     [{"split": "train", "kind": "no-prompt", "count": 2, "first": 7, "detail": "a role header"}], [],
     "2 training conversations, the first is number 7 in this split: a role header"),
    ("TSK002", {"config.task": "classification", "config.dataset.long_documents": "truncate",
                "config.trainer.metric_for_best_model": "eval/cost"},
     "config.plugins.metrics", [], ["yaml:dump"], "metric_for_best_model is eval/cost"),
    ("PRE003", CONVERTED, "facts.rehearsal.precision.product_flops",
     {"bfloat16": 1.0}, {"bfloat16": 0.2, "float8_e4m3fn": 0.8}, "matrix products use bfloat16 100%"),
    ("PRE003", {}, "facts.rehearsal.precision.parameters", {"bfloat16": 7}, {"float32": 7}, "7 in bfloat16"),
    ("PRE007", CONVERTED, "config.trainer.mixed_precision", "fp32", "bf16", "returns bf16, but"),
    ("PRE007", CONVERTED, "config.datacollator.pack_sequences", False, True, "needs packed rows"),
    ("PRE007", CONVERTED, "config.distributed.mode", "fsdp2", "replicated", "not support sharded weights"),
    ("PRE007", CONVERTED | {"config.task": "causal"}, "config.adapter.type",
     "lora", None, "does not support an adapter"),
    ("PRE005", ENGINE | {"config.transformer_engine.recipe": "mxfp8"}, CAPABILITY, [12, 0], [10, 3],
     "mxfp8 needs 10.0 to below 12.0"),
    ("PRE005", ENGINE | {"config.transformer_engine.recipe": "fp8_block", CAPABILITY: [9, 0]},
     "facts.software.torch_cuda", "12.8", "12.9", "; fp8_block needs 12.9"),
    ("PRE005", ENGINE, CAPABILITY, [8, 0], [8, 9], "fp8_current needs 8.9"),
    ("PRE005", QUARTET, CAPABILITY, [10, 0], [12, 0], "quartet_ii needs 12.0 to below 13.0"),
    ("PRE007", TENSORWISE | {"config.distributed.mode": "fsdp2"}, GATHERS, False, True,
     "float8_tensorwise with sharded weights needs torchao.enable_fsdp_float8_all_gather"),
    ("PRE007", TENSORWISE, GATHERS, True, False, "needs sharded weights"),
    ("CFG013", CONVERTED, GATHERS, True, False, "float8_rowwise does not read"),
    ("CFG013", TENSORWISE, "config.torchao.precompute_float8_dynamic_scale_for_fsdp", True, False,
     "enable_fsdp_float8_all_gather is false"),
    ("CFG013", CONVERTED, "config.torchao.filter_fqns", ["wo", "decoder"], ["wo"],
     "decoder in torchao.filter_fqns has no effect: the linear layers of the blocks are qkv, wo, ffn.w12"),
    ("PRE007", QUARTET, "profile", "cpu-demo", "gpu", "quartet_ii needs a GPU"),
    ("PRE009", QUARTET | {"config.trainer.per_device_train_batch_size": 1},
     "config.dataset.max_seq_length", 960, 896, "quartet_ii needs a multiple of 128 tokens"),
    ("PRE007", CONVERTED, "config.transformer_engine.enable", True, False,
     "transformer_engine.enable and torchao.enable are both true"),
    ("PRE007", CONVERTED, "config.trainer.torch_compile", False, True, "if trainer.torch_compile is false"),
    ("HST001", CONVERTED, "facts.software.packages", {}, {"torchao": "0.18.0"}, "torchao is not installed"),
    ("HST001", ENGINE, "facts.software.packages", {}, {"transformer-engine": "2.20.2"},
     "transformer-engine is not installed"),
    ("HST001", CONVERTED, "facts.software.packages", {"torchao": "0.17.9"}, {"torchao": "0.18"},
     "torchao 0.17.9 is older than 0.18"),
    ("CFG013", ENGINE, "config.transformer_engine.disable_rht", False, True, "fp8_current does not read"),
    ("PRE007", CONVERTED, "config.torchao.recipe", "mxfp8_emulated", "mxfp8_rceil", "rounds as mxfp8 does"),
    ("PRE007", EMULATED | {"profile": "cpu-demo"}, "config.torchao.recipe",
     "float8_rowwise", "mxfp8_emulated", "needs a GPU"),
    ("PRE008", CONVERTED | {"config.torchao.filter_fqns": ["qkv", "wo"]},
     "config.torchao.skip_first_last_linear", True, False, "linear layers of the blocks"),
    ("PRE009", EMULATED | {"config.trainer.per_device_train_batch_size": 1},
     "config.dataset.max_seq_length", 1000, 1024, "a multiple of 32 tokens in a microbatch, not 1,000"),
    ("PRE009", EMULATED | {"config.trainer.per_device_train_batch_size": 1},
     "config.dataset.max_seq_length", 31, 32, "a multiple of 32 tokens in a microbatch, not 31"),
    ("TSK001", {"config.task": "classification"}, "config.dataset.long_documents", "split", "truncate",
     "a label belongs to a whole text"),
    ("TSK001", {"config.task": "contrastive"}, "config.dataset.long_documents", "split", "truncate",
     "a vector belongs to a whole text"),
    ("TSK008", ADAPTED, "config.model.pretrained_checkpoint", None, "runs/base", "random weights"),
    ("DAT030", SCORED, "facts.inspection.prepared.scores",
     {"mean": 1.0, "min": 1.0, "max": 1.0}, {"mean": 1.0, "min": 0.999, "max": 1.0}, "training pairs are 1"),
    ("DAT030", SCORED, "facts.inspection.prepared.scores",
     {}, {"mean": 1.0, "min": 0.0, "max": 1.0}, "no training pair has a score"),
    ("SFT003", {"config.task": "sft"}, "facts.inspection.prepared.faults",
     [{"split": "train", "kind": "tools", "count": 1, "first": 7, "detail": "the tools are left out"}], [],
     "the first is number 7 in this split: the tools are left out"),
    ("DAT004", {"config.dataset": {"mixture": [{"path": "books"}, {"path": "web"}]}},
     "facts.inspection.prepared.corpora", [{"label": "books", "share": 0.5, "tokens": 1000, "epochs": 4.1}],
     [{"label": "books", "share": 0.5, "tokens": 1000, "epochs": 4.0}], "books is read 4.1 times"),
    ("HST005", {"facts.scheduler.name": "slurm"}, "facts.scheduler.preempt_lead_s", 30.0, 31.0,
     "may be preempted 30 s after its warning"),
    ("MEM001", OF_5_BILLION, "config.distributed.mode", "replicated", "fsdp2", "whole on each device, need"),
    ("CFG013", {"config.optimizer.qk_clip_threshold": 30.0}, "config.optimizer.name", "muon", "muonclip",
     "qk_clip_threshold has no effect: optimizer.name is muon"),
    ("TEL003", {"measured.step_time_s": 12.0},
     "config.watchdog.compile_limit_s", 12.0, 12.5, "watchdog.compile_limit_s is 12"),
    ("DAT007", STREAMED | {"config.trainer.eval_max_batches": 16},
     "facts.text.0.num_eval_files", 0, 1, "or an evaluation split and trainer.eval_max_batches"),
    ("DAT007", STREAMED | {"config.trainer.eval_max_batches": 16},
     "config.dataset.eval_split", None, "validation", "or an evaluation split and trainer.eval_max_batches"),
    ("DAT007", STREAMED | {"config.dataset.eval_split": "validation"},
     "config.trainer.eval_max_batches", None, 16, "or an evaluation split and trainer.eval_max_batches"),
    ("DAT026", {"config.dataset.eval_samples": None},
     "config.dataset.validation_split", 0.501, 0.5, "holds out more text"),
    ("DAT026", {"config.dataset.validation_split": 0.9},
     "config.dataset.eval_samples", None, 100, "holds out more text"),
    ("DAT026", {"config.dataset.eval_split": "train"},
     "config.dataset.train_split", "train[:90%]", "test", "is also trained on"),
    ("DAT026", {"config.dataset.eval_split": "train[90%:]"},
     "config.dataset.train_split", "train", "train[:90%]", "is also trained on"),
    ("DAT029", OTHER_TOKENIZER, "facts.resume.is_continued", True, False, "tokenizer 0123456789ab, not"),
    ("DAT029", OTHER_TOKENIZER, "facts.resume.tokenizer_digest", "0123456789abc", "", "0123456789ab, not"),
    ("DAT029", CONTINUED | UNINSPECTED,
     "facts.resume.tokenizer_differences", ["seed: 1 in it"], [], "of runs/first/checkpoints/800: seed: 1"),
    ("DAT029", CONTINUED | UNINSPECTED | {"facts.resume.tokenizer_differences": ["seed: 1 in it"]},
     "facts.resume.is_continued", True, False, "trains its own tokenizer"),
    ("DAT029", OTHER_TOKENIZER | UNINSPECTED, "facts.resume.tokenizer_differences",
     ["seed: 1", "path: a", "name: b"], [], "checkpoints/800: seed: 1; path: a and 1 more"),
    ("CKP017", SAME_TEXT, "facts.resume.data_fingerprint", "other", "", "the text has changed since"),
    ("CKP017", SAME_TEXT, "facts.resume.tokenizer_digest", "other", "", "the tokenizer has changed since"),
    ("CKP017", OTHER_TEXT, "facts.resume.is_verified", True, False, "the text has changed"),
    ("CKP017", OTHER_TEXT, "facts.resume.is_continued", False, True, "the text has changed"),
    ("DAT029", WEIGHTS, "facts.data.special_tokens", {"mask": [103, 4]}, {}, "other special tokens than the"),
    ("DAT029", WEIGHTS, "facts.data.renumbered_tokens", 1234, 0, "1,234 of 30,000 token ids differ"),
    ("DAT029", RENUMBERED | UNINSPECTED, "facts.data.renumbered_tokens", 1, 0, "1 of 30,000 token ids"),
    ("DAT029", RENUMBERED, "facts.inspection.prepared.weights_tokens", 0, 20000, "1,234 of 30,000 token ids"),
    ("DAT029", RENUMBERED | {"facts.resume.exists": True},
     "facts.resume.is_verified", False, True, "1,234 of 30,000 token ids"),
    ("DAT029", RENUMBERED, "config.model.pretrained_checkpoint", "runs/first/checkpoints/7", None,
     "1,234 of 30,000"),
    ("DAT029", INSPECTED, "facts.inspection.prepared.renumbered_tokens", 7, 0, "7 of 20,000 token ids"),
    ("DAT029", WEIGHTS, "facts.data.tokenizer_differences", ["seed: 1 in it"], [],
     "trains its own tokenizer, not the one of runs/first/checkpoints/latest: seed: 1 in it"),
    ("DAT029", WEIGHTS, "facts.data.tokenizer_differences", ["seed: 1", "path: a", "name: b"], [],
     "latest: seed: 1; path: a and 1 more"),
    ("DAT029", INSPECTED | {"facts.data.tokenizer_differences": ["seed: 1 in it"]},
     "facts.inspection.prepared.weights_tokens", 0, 20000, "trains its own tokenizer"),
    ("CKP012", DECAYED, "facts.resume.is_verified", True, False, "outside the plateau"),
    ("CKP012", DECAYED, "facts.resume.is_continued", True, False, "(steps 50 to 800)"),
    ("CKP012", DECAYED, "facts.resume.stable_steps", [50, 800], None, "(steps 50 to 800)"),
    ("CKP012", DECAYED, "config.trainer.continue_from", "runs/first", None, "outside the plateau"),
    ("CKP012", DECAYED, "facts.resume.stable_steps", [50, 50], [50, 51],
     "has no plateau: the learning rate decays from step 50"),
    ("CKP012", DECAYED, "facts.resume.stable_steps", [50, 51], [50, 50], "(steps 50 to 51)"),
    ("CKP012", CONTINUED, "config.trainer.max_epochs", 2.0, None, "max_epochs counts the steps before"),
    ("CKP008", CONTINUED | {"config.trainer.resume_from_checkpoint": "auto", "facts.output.exists": True,
     "facts.output.is_directory": True, "facts.output.is_empty": False, "facts.output.config_digest": "c0"},
     "facts.resume.is_continued", False, True, "contains another run"),
    ("CKP008", {"facts.output.exists": True}, "facts.output.is_directory", False, True, "is a file"),
    ("CKP008", {}, "facts.output.obstacle", "no file can be created in /a", "", "cannot be created: no file"),
    ("CKP004", {"facts.disk.free_mib": 0}, "facts.output.obstacle", "", "none in /a", "0 MiB free"),
    ("CKP005", {"facts.disk.is_writable": False}, "facts.output.obstacle", "", "none in /a", "written to"),
    ("CKP007", WEIGHTS | {"facts.data.weights_hint": "restore it"},
     "facts.data.weights_damage", "config.json changed", "", "checkpoints/latest: config.json changed"),
    ("CKP008", RESUME | {"facts.output.exists": True, "facts.output.is_directory": True,
     "facts.output.is_empty": False, "facts.output.checkpoint_steps": [100]},
     "facts.resume.is_elsewhere", True, False, "contains another run (checkpoints: 100)"),
    ("DAT001", {}, "facts.data.is_readable", False, True, "cannot be read"),
    ("DAT001", {"config.dataset.path": "corpus", "config.dataset.name": None},
     "facts.data.size_bytes", 0, 1, "is empty"),
    ("DAT001", {"config.dataset.path": "corpus", "config.dataset.name": None, "facts.data.size_bytes": 0},
     "facts.data.reason", "", "a.txt: Permission denied", "is empty"),
    ("DAT037", FEW_TEXTS | {"config.dataset.eval_samples": 2}, "facts.text.0.num_eval_files", 0, 1,
     "7 training texts do not fill a microbatch of 8 rows"),
    ("DAT037", FEW_TEXTS | {"config.dataset.validation_split": 0.2}, "facts.text.0.documents", 9, 10,
     "7 training texts do not fill a microbatch of 8 rows"),
    ("DAT037", FEW_TEXTS, "facts.text.0.documents", 7, None, "7 training texts do not fill"),
    ("DAT001", {}, "facts.data.source_reason", "old.txt: no such file or folder", "",
     "the source text cannot be read: old.txt: no such file or folder"),
    ("DAT001", {}, "facts.data.tokenizer_exists", False, True, "no tokenizer"),
    ("DAT001", {"facts.data.weights": "runs/a"},
     "facts.data.weights_reason", "it holds none", "", "start from the weights in runs/a: it holds none"),
    ("GPU001", {}, "facts.gpus", [], [GPU], "0 GPUs visible (1 needed)"),
    ("GPU001", {}, "facts.gpus.0.name", "NVIDIA A10", "NVIDIA A100-PCIE-80GB", "is not the required A100"),
    ("GPU001", {}, "facts.gpus.0.compute_capability", [7, 5], [8, 0], "compute capability 7.5"),
    ("GPU001", {"facts.gpus": [GPU]}, "config.distributed.nproc_per_node", 2, 1, "1 GPU visible (2 needed)"),
    ("GPU002", {"facts.gpus.0.memory_total_mib": 81920},
     "measured.memory_mib", 73725, 73724, "the step needs"),
    ("DAT002", {}, "facts.inspection.prepared.data_tokenizer_digest", "other", "70c", "tokenizer other"),
    ("DAT002", {"facts.inspection.prepared.max_token_id": 40000,
                "facts.inspection.prepared.vocab_size": 50000},
     "config.model.vocab_size", 40000, 40001, "has 40,000 embedding rows"),
    ("DAT002", {"facts.inspection.prepared.max_token_id": 40000},
     "facts.inspection.prepared.vocab_size", 40000, 40001, "the tokenizer has 40,000 tokens"),
    ("DAT003", {}, "facts.inspection.prepared.missing_samples", 1, 0, "were read by no rank"),
    ("DAT003", {}, "facts.inspection.prepared.empty_ranks", [3], [], "these ranks get no data: 3"),
    ("DAT004", {}, "facts.inspection.prepared.epochs", 4.01, 4.0, "4.0 times"),
    ("DAT005", {}, "facts.inspection.prepared.truncation_share", 0.0501, 0.05, "at most 1,024 tokens"),
    ("DAT005", {}, "facts.inspection.prepared.dropped_share", 0.0501, 0.05, "are dropped"),
    ("DAT005", {"facts.inspection.prepared.documents": 100}, "facts.inspection.prepared.rows_without",
     {"label": 2}, {}, "2 of 100 training rows left out, because they have no label"),
    ("DAT005", {"facts.inspection.prepared.first_row_without": {"label": "a.csv:7", "text": "a.csv:3"}},
     "facts.inspection.prepared.rows_without", {"label": 2}, {}, "have no label; the first is a.csv:7"),
    ("NUM006", {}, "facts.inspection.prepared.special_targets", 1, 0, "special tokens"),
    ("NUM006", {}, "facts.inspection.prepared.padding_targets", 1, 0, "are padding"),
    ("NUM006", {}, "facts.inspection.prepared.wrong_labels", 1, 0, "differ from the text"),
    ("DST001", SAME_CONFIG, "facts.distributed.ranks.1.code_digest", "abd", "abc",
     "rank 1 runs different code"),
    ("DST001", SAME_CONFIG, "facts.distributed.ranks.1.versions", {"torch": "2.11.0"}, {"torch": "2.13.0"},
     "rank 1 has torch 2.11.0, the others 2.13.0"),
    ("DST001", SAME_CONFIG, "facts.distributed.ranks.1.versions", {}, {"torch": "2.13.0"},
     "rank 1 has torch none"),
    ("DST003", TWO_HEALTHY, "facts.distributed.has_peer_access", False, True, "go through host memory"),
    ("DST003", TWO_HEALTHY | {"facts.gpu_health.1.num_nvlinks": 0},
     "facts.distributed.bus_bytes_per_s", 12.6e9, 12.7e9, "16 lanes of PCIe 4"),
    ("DST003", TWO_HEALTHY | {"facts.distributed.bus_bytes_per_s": 99e9},
     "facts.gpu_health.1.num_nvlinks", 10, 9, "10 NVLinks provide 250"),
    ("DST004", TWO_PROCESSES, "facts.distributed.absent", [1], [],
     "rank 1 did not check in within 25 s"),
    ("DST004", TWO_PROCESSES, "facts.distributed.drill_s", 10.1, 10.0,
     "detecting a missing rank took 10.1 s"),
    ("DST006", TWO_PROCESSES, "facts.distributed.loss.distributed_loss", None, 5.0, "not finite"),
    ("DST006", TWO_PROCESSES, "facts.distributed.loss.single_grad_norm", None, 1.0, "not finite"),
    ("DST006", TWO_PROCESSES, "facts.distributed.loss.single_loss", 5.001, 5.0, "the loss is 5"),
    ("DST006", TWO_PROCESSES, "facts.distributed.loss.distributed_grad_norm", 1.00011, 1.00009,
     "gradient norm"),
    ("GPU001", {}, "facts.gpus.0.is_mig_enabled", True, False, "MIG mode"),
    ("GPU002", {}, "facts.gpus.0.processes", [{"pid": 7, "name": "python", "memory_mib": None}], [],
     "is in use by process 7 (python)"),
    ("GPU003", {}, "facts.gpu_health.0.is_remap_pending", True, False, "row remapping is pending"),
    ("GPU003", {}, "facts.gpu_health.0.has_remap_failed", True, False, "failed"),
    ("GPU003", {}, "facts.gpu_health.0.is_retirement_pending", True, False, "page retirement"),
    ("GPU003", {}, "facts.gpu_health.0.recovery_action", "gpu_reset", "none",
     "recommends a recovery action: gpu_reset"),
    ("GPU003", {}, "facts.gpu_health.0.retired_pages", 2, 0, "2 memory pages retired"),
    ("GPU003", TELLS_NOTHING, "facts.gpu_health.0.uncorrected_errors", None, 0,
     "reports no memory error counters"),
    ("HST008", {}, "facts.imports.kernel_error", "cuda:0: wrong", "", "cuda:0: wrong"),
    ("HST008", {}, "facts.imports.cuda_version", "", "13.0", "built without CUDA"),
    ("HST001", {},
     "facts.software.pinned", {"torch": "2.12.1"}, {"torch": "2.13.0"}, "untested versions"),
    ("HST001", {}, "facts.software.packages.flash-attn", "2.7.4", "2.8", "flash-attn 2.7.4 is older"),
    ("HST001", {"facts.software.packages.flash-attn": "2.7.4"},
     "profile", "a100-prod", "cpu-demo", "flash-attn 2.7.4"),
    ("HST009", {"facts.host.accelerate_file": ACCELERATE | {"is_named": True}},
     "facts.host.accelerate_file.distributed_type", "DEEPSPEED", "MULTI_GPU", "selects DeepSpeed"),
    ("HST009", {"facts.host.accelerate_file": ACCELERATE | {"distributed_type": "FSDP"}},
     "facts.host.accelerate_file.fsdp_version", "", "2", "selects FSDP 1 by accelerate"),
    ("HST009", {"facts.host.accelerate_file": ACCELERATE | {"error": "not YAML"}},
     "facts.host.accelerate_file.is_named", True, False, "cannot be read: not YAML"),
    ("HST009", {"facts.host.accelerate_file": ACCELERATE | {"distributed_type": "MEGATRON_LM"}},
     "overrides", [], ["distributed.mode=replicated"], "selects Megatron-LM"),
    ("HST011", {"facts.gpus.0.driver_version": "550.54.15"},
     "facts.software.torch_cuda", "13.0", "12.8", "driver 550.54.15 is older than 580.65.06"),
    ("HST012", {}, "facts.recorded_utc", "2023-12-31T23:59:59+00:00", "2024-01-01T00:00:00+00:00",
     "the system clock shows the year 2023"),
    ("HST012", {"facts.host.is_clock_synchronized": False},
     "config.distributed.nnodes", 2, 1, "not synchronized"),
    ("HST012", {"config.distributed.nnodes": 2},
     "facts.host.is_clock_synchronized", False, None, "not synchronized"),
    ("CKP004", {}, "facts.disk.reservation", "refused", "done", "cannot be reserved"),
    ("CKP004", {"facts.disk.reservation": "unsupported"},
     "profile", "a100-prod", "cpu-demo", "quota not checked"),
    ("HST003", TWO_PROCESSES, "facts.host.shm_free_mib", 127, 128, "/dev/shm"),
    ("HST003", TWO_PROCESSES, "facts.host.cpu_count", 1, 2, "2 data-loader threads"),
    ("HST003", {"profile": "cpu-demo", "measured.memory_mib": 900},
     "facts.host.ram_available_mib", 999, 1000, "host memory"),
    ("HST004", {"config.wandb.enabled": True}, "facts.tracker.is_installed", False, True, "not installed"),
    ("HST004", {"config.wandb.enabled": True}, "facts.tracker.is_reachable", False, True,
     "does not accept connections"),
    ("HST004", {"config.trackers": ("trackio",)}, "facts.tracker.packages",
     {"trackio": False}, {"trackio": True}, "trackio is not installed"),
    ("HST004", {"config.trackers": ("tensorboard",), "facts.tracker.packages": {"tensorboard": True}},
     "facts.tracker.unwritable", {"tensorboard": "/read-only"}, {}, "cannot write to /read-only"),
    ("SCH003", {"config.task": "contrastive", "config.dataset.long_documents": "truncate"},
     "facts.rehearsal.accumulation.relative_difference", 0.06, 0.04, "the gradient of one graph over both"),
    ("SCH004", {"config.trainer.eval_steps": 0}, "config.trainer.logging_steps", 50_001, 50_000,
     "logging_steps "),
    ("SCH004", {"config.optimizer.name": "muonclip", "config.trainer.max_steps": 500},
     "config.optimizer.qk_clip_interval", 501, 500, "qk_clip_interval "),
    ("SCH004", {}, "config.trainer.profile_steps", (30, 29), (30, 30),
     "[30, 29] is not a range within 50,000 steps"),
    ("SCH004", {}, "config.trainer.profile_steps", (50_000, 50_001), (50_000, 50_000), "no step is profiled"),
    ("SCH004", {}, "config.trainer.profile_steps", (7, 107), (7, 106), "101 steps are profiled (limit 100)"),
    ("SCH004", {}, "config.trainer.memory_snapshot_step", 50_001, 50_000, "exceeds trainer.max_steps 50,000"),
    ("DAT038", {"facts.data.unjoined_parts": 3}, "facts.data.part_faults",
     ["part-2-of-3 differs from part-1-of-3 in max_length"], [], "part-2-of-3 differs from"),
    ("DAT038", {"facts.data.unjoined_parts": 3}, "facts.data.missing_parts", ["part-2-of-3"], [],
     "1 part is missing: part-2-of-3"),
    ("DAT002", {"facts.inspection.prepared.token_ids": {"documents": 1000, "returned": 1000, "marked": 10}},
     "facts.inspection.prepared.token_ids.returned", 989, 990, "989 of 1,000 documents have the same ids"),
    ("DAT002", {}, "facts.inspection.prepared.token_ids",
     {"documents": 10_000, "returned": 10_000, "marked": 101},
     {"documents": 10_000, "returned": 10_000, "marked": 100}, "inside the text (at most 1%)"),
    ("DAT013", {}, "config.dataset.name", "json", "me/json", "dataset.name json is a file format"),
    ("DAT013", {"config.dataset.name": None}, "config.dataset.path", None, "text", "none of"),
    ("MOD001", {}, "config.model.num_hidden_layers", 6, 7, "6 blocks"),
    ("MOD001", {}, "config.dataset.max_seq_length", 255, 256, "255 tokens"),
    ("MOD001", {"config.model.num_hidden_layers": 7},
     "config.model.intermediate_size", 3060, 3072, "parameters"),
    ("MOD002", {}, "config.model.vocab_size", 30522, 30592, "not a multiple of 128"),
    ("MOD002", {"config.model.vocab_size": 4096, "config.tokenizer.name": None},
     "config.tokenizer.vocab_size", 4097, 4096,
     "4,096 embedding rows, but a cased WordPiece with tokenizer.vocab_size 4,097"),
    ("MOD002", {"config.tokenizer.vocab_size": 4096}, "config.model.vocab_size", 30464, 30592,
     "30,464 embedding rows, but bert-base-uncased has 30,522 tokens"),
    ("MOD003", AUTO | {"config.trainer.per_device_train_batch_size": 128},
     "config.trainer.per_device_train_batch_size", 128, 96, "with recomputation"),
    ("MOD002", {"config.model.num_attention_heads": 64}, "profile", "a100-prod", "cpu-demo",
     "not supported by flash_attn_4"),
    ("MOD002", {}, "config.model.max_position_embeddings", 1023, 1024, "exceeds max_position"),
    ("MOD002", {}, "config.datacollator.max_length", 512, 1024, "but dataset.max_seq_length is"),
    ("MOD002", {}, "config.tokenizer.max_length", 512, 1024, "but dataset.max_seq_length is"),
    ("MOD003", {}, "config.trainer.gradient_checkpointing", True, False, "without gradient checkpointing"),
    ("SCH001", {"config.trainer.max_steps": 50000},
     "config.scheduler.decay_steps", 48001, 48000, "during the warm-up"),
    ("SCH001", {"config.trainer.max_steps": 50000},
     "config.scheduler.total_steps", 50001, 50000, "after the last step"),
    ("SCH001", {"config.scheduler.decay_percent": 60.0},
     "config.scheduler.warmup_percent", 41.0, 40.0, "warm-up"),
    ("SCH001", {"config.trainer.max_steps": 50000},
     "config.scheduler.total_steps", 1999, 2000, "the decay ends at step 1,999, during the warm-up"),
]  # fmt: skip


@pytest.mark.parametrize("row", ROWS, ids=[f"{row[0]}-{row[2].rpartition('.')[2]}" for row in ROWS])
def test_branch_fires_and_its_neighbour_does_not(row, judge_once):
    code, base, key, failing, passing, fragment = row

    def output(value: Any) -> list[str]:
        return [finding.message for finding in judge_once(base | {key: value}).of(code)]

    fired = [message for message in output(failing) if fragment in message]
    assert fired, output(failing)
    # the same finding about the neighbour would have the neighbour's value
    forms = {NUMBER.sub("#", message) for message in fired}
    assert not [each for each in output(passing) if fragment in each or NUMBER.sub("#", each) in forms]


@pytest.mark.parametrize(
    ("code", "situation"),
    [
        ("ATT004", {"profile": "gpu", "config.model.attn_backend": "sdpa"}),
        ("CKP005", OVERLAY),
        ("CKP005", {"facts.disk.filesystem": "overlay", "facts.gpus": None}),
        ("CKP007", RESUME | {"facts.resume.step": 10, "facts.resume.passed_by": ["20: weights is missing"]}),
        ("CKP007", RESUME | WEIGHTS | {"facts.data.weights_damage": "config.json changed"}),
        ("DAT001", RESUME | {"facts.data.weights_reason": "no such file or folder"}),
        ("HST001", {"facts.software.pinned": {"torch": "2.12.1"}}),
        ("PRE001", SHORT_ON_GPU | {"config.trainer.mixed_precision": "fp32"}),
        ("PRE008", CONVERTED | {"config.torchao.filter_fqns": ["qkv", "wo", "w12"]}),
        ("PRE011", CONVERTED | {"profile": "gpu", "facts.rehearsal.low_precision": BEATS_TORCH}),
        ("HST011", {"facts.gpus.0.driver_version": "550.54.15"}),
        ("CKP004", {"facts.disk.reservation": "unsupported"}),
    ],
)
def test_a_lesser_violation_warns(code, situation, judge_situation):
    assert {finding.severity for finding in judge_situation(situation).of(code)} == {Severity.WARN}


def test_a_filter_that_excludes_every_layer_is_to_be_shortened():
    (finding,) = found("PRE008", run_of("torchao.enable=true", "torchao.filter_fqns=[qkv,wo,w12,w3]"))
    assert finding.hint == "shorten torchao.filter_fqns, or set torchao.enable to false"


def test_heads_that_do_not_divide_the_width_are_replaced_by_numbers_that_do():
    (finding,) = found("MOD002", run_of("model.num_attention_heads=10"))
    assert finding.hint == "set model.num_attention_heads to 8, 12 or 16; a head size of 64 is usual"


def test_gpt2_has_nothing_to_convert_and_no_filter_to_shorten(judge_situation):
    """Its weights are transposed."""
    small = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    model = {"type": "hf", "architecture": "gpt2"} | small
    (finding,) = judge_situation(CONVERTED | {"config.task": "causal", "config.model": model}).of("PRE008")
    assert finding.message == "the blocks of gpt2 have no linear layers that float8_rowwise can convert"
    assert finding.path == "torchao.enable"
    assert finding.hint == "set torchao.enable to false"


def test_a_recipe_of_gpus_is_refused_once_on_a_cpu(judge_situation):
    judged = judge_situation(CONVERTED | {"profile": "cpu-demo", "config.trainer.mixed_precision": "bf16"})
    refused = [each for code in ("PRE005", "PRE007") for each in judged.of(code)]
    assert [each.message for each in refused] == ["float8_rowwise needs a GPU"]


def test_a_recipe_beyond_the_profiles_gpu_is_refused_before_the_run_is_queued(judge_situation):
    torch = {"config.model.kernel_backend": "auto", "config.trainer.torch_compile": True}
    queued = CONVERTED | torch | {"profile": "h100-prod", "facts.gpus": None}
    (finding,) = judge_situation(queued | {"config.torchao.recipe": "mxfp8_rceil"}).of("PRE007")
    required = "the profile requires the GPU H100 (compute capability 9.0)"
    assert finding.message.startswith(f"{required}; mxfp8_rceil needs 10.0")
    assert finding.hint == "set torchao.recipe to float8_rowwise"
    assert judge_situation(queued).of("PRE007") == []


def test_a_slower_recipe_is_refused_with_both_times_and_kernels(judge_situation):
    (finding,) = judge_situation(CONVERTED | {"facts.rehearsal.low_precision": BEATS_TORCH}).of("PRE011")
    assert finding.severity is Severity.FAIL
    assert finding.message == (
        "a step takes 105 ms with float8_rowwise (torch, torch_varlen) and 93.1 ms in bf16 "
        "(fused, triton_packed; limit 97%)"
    )


def test_sharded_weights_need_the_recipe_that_gathers_them_if_there_is_one(judge_situation):
    sharded = {"config.distributed.mode": "fsdp2", "config.model.kernel_backend": "auto"}
    hints = [judge_situation(section | sharded).of("PRE007")[0].hint for section in (CONVERTED, ENGINE)]
    edits = "set torchao.recipe to float8_tensorwise and torchao.enable_fsdp_float8_all_gather to true"
    assert hints == [f"{edits}, or set distributed.mode to replicated", "set distributed.mode to replicated"]


@pytest.mark.parametrize("section", [CONVERTED, EMULATED, TENSORWISE, ENGINE])
def test_on_a_cpu_no_hint_leads_to_a_recipe_that_needs_a_gpu(section, judge_situation):
    sharded = {"profile": "cpu-demo", "config.distributed.mode": "fsdp2"}
    sharded |= {"config.trainer.mixed_precision": "bf16", "config.model.kernel_backend": "auto"}
    found = {each.path: each.hint for each in judge_situation(section | sharded).of("PRE007")}
    assert found["distributed.mode"] == "set distributed.mode to replicated"


def test_an_emulated_recipe_may_be_slower(judge_situation):
    slower = {"facts.rehearsal.low_precision": BEATS_TORCH}
    assert judge_situation(CONVERTED | slower).of("PRE011")
    assert not judge_situation(EMULATED | slower).of("PRE011")


def test_fused_blocks_need_their_package_and_their_card(judge_situation):
    packages = {"torch": "2.13.0", "triton": "3.6", "quack-kernels": "0.6.5"}
    on_hopper = {"facts.gpus": [HOPPER]}
    requested = {"config.model.kernel_backend": "fused", "config.model.attn_backend": "auto"}

    def output(**changes):
        return [finding.message for finding in judge_situation(requested | changes).of("ATT001")]

    without = {"torch": "2.13.0", "triton": "3.6"}
    assert output(**on_hopper, **{"facts.software.packages": without}) == [
        "fused needs quack-kernels, which is not installed"
    ]
    on_ampere = output(**{"facts.software.packages": packages})
    assert any("fused needs compute capability 9.x" in message for message in on_ampere)


def test_a_smoke_run_may_waste_text(judge_situation):
    padded = {"facts.inspection.prepared.fill": 0.1}
    assert judge_situation(padded).of("DAT005")
    assert judge_situation(padded | {"profile": "gpu-smoke"}).status("DAT005") is Status.SKIP


SMALL_TEXT = {
    "profile": "gpu", "text_bytes": 1, "config.trainer.max_steps": 3000, "facts.inspection": None,
}  # fmt: skip


def test_the_hint_for_a_small_text_leaves_a_step(judge_situation):
    (one,) = judge_situation(SMALL_TEXT).of("DAT025")
    assert one.hint == "add text, or set trainer.max_steps to 4, which reads this text 4 times"
    (longer,) = judge_situation(SMALL_TEXT | {"config.trainer.gradient_accumulation_steps": 8}).of("DAT025")
    assert "set trainer.max_steps to 1," in longer.hint
    streamed = SMALL_TEXT | {"config.dataset.streaming": True}
    assert judge_situation(streamed).status("DAT025") is Status.SKIP


def test_a_text_that_was_counted_is_judged_by_the_count(judge_situation):
    repeated = {"profile": "gpu", "text_bytes": 1, "config.trainer.max_steps": 4100}
    repeated |= {"facts.inspection.prepared.epochs": 41.0}
    (found,) = judge_situation(repeated).of("DAT004")
    assert found.hint == "add text, or set trainer.max_steps to 400, which reads this text 4 times"
    assert judge_situation(repeated).of("DAT025") == [], "estimated, and then counted"
    assert (
        judge_situation(repeated | {"facts.inspection.prepared.epochs": 40.0}).status("DAT004") is Status.PASS
    )
    assert judge_situation(repeated | {"profile": "gpu-smoke"}).status("DAT004") is Status.SKIP


def test_a_mixture_is_not_called_remote_text(judge_situation):
    mixed = {"config.dataset.path": None, "config.dataset.mixture": [{"path": "notes"}]}
    result = judge_situation({"profile": "gpu"} | mixed).checks["DAT025"]
    assert (result.status, "DAT004" in result.message) == (Status.SKIP, True)


@pytest.mark.parametrize(("keep_every", "nearest"), [(3, 2000), (5000, 4000), (9000, 8000), (9001, 10_000)])
def test_steps_to_keep_are_moved_to_steps_that_are_saved(keep_every, nearest, judge_situation):
    saved = {"config.trainer.save_steps": 2000, "config.trainer.save_keep_every": keep_every}
    (one,) = judge_situation(saved).of("CKP015")
    assert f"to {nearest}, " in one.hint


def test_a_timeout_below_a_step_is_raised_to_the_usual_ten(judge_situation):
    (one,) = judge_situation({"measured.step_time_s": 12.0, "config.watchdog.step_limit_s": 12.0}).of(
        "TEL003"
    )
    assert "watchdog.step_limit_s to 120 or more" in one.hint


@pytest.mark.parametrize(
    ("seconds", "hint"),
    [
        (100_000.0, "set watchdog.step_limit_s to 604800"),
        (1e40, "lower the sizes of the model or of the batch: no limit is longer than a week"),
    ],
)
def test_no_timeout_is_suggested_that_the_schema_refuses(seconds, hint, judge_situation):
    found = judge_situation({"measured.step_time_s": seconds}).of("TEL003")
    assert hint in [each.hint for each in found]


def test_a_patience_that_cannot_run_out_wastes_nothing(judge_situation):
    patient = {
        "config.trainer.early_stopping_patience": 2,
        "config.trainer.metric_for_best_model": "eval/loss",
        "config.trainer.eval_steps": 1000,
        "config.trainer.max_steps": 3000,
    }
    assert judge_situation(patient).status("TSK003") is Status.WARN


def test_a_smoke_run_may_do_without_a_varlen_kernel(judge_situation):
    without = {
        "config.model.attn_backend": "auto",
        "config.model.kernel_backend": "auto",
        "facts.software.packages": {},
    }
    assert judge_situation(without).of("ATT001")
    assert judge_situation(without | {"profile": "gpu-smoke"}).of("ATT001") == []


@pytest.mark.parametrize(
    ("reason", "first"),
    [
        ("old.txt: does not exist", "restore the source text and its tokenizer ("),
        (PLUGGED_SOURCE, "set trainer.eval_source_text to false"),
    ],
)
def test_only_source_text_in_files_can_be_restored(reason, first, judge_situation):
    (one,) = judge_situation(CONTINUED | {"facts.resume.source_reason": reason}).of("CKP007")
    assert one.hint.startswith(first)


@pytest.mark.parametrize(
    "way_out",
    [{"config.trainer.overwrite_output_dir": True}, {"config.trainer.resume_from_checkpoint": "auto"}],
)
def test_an_occupied_folder_has_two_ways_out(way_out, judge_situation):
    folder = {"facts.output.exists": True, "facts.output.is_directory": True, "facts.output.is_empty": False}
    occupied = folder | {
        "config.trainer.resume_from_checkpoint": "never",
        "facts.output.checkpoint_steps": [100, 200],
        "facts.output.config_digest": "abc",
    }
    (one,) = judge_situation(occupied).of("CKP008")
    assert "checkpoints: 100, 200" in one.message
    assert all(key.removeprefix("config.") in one.hint for key in way_out), "preflight has keys, no --resume"
    assert judge_situation(occupied | way_out).of("CKP008") == []
    foreign = occupied | {"facts.output.checkpoint_steps": [], "facts.output.config_digest": ""}
    assert "do not belong to a run" in judge_situation(foreign | way_out).of("CKP008")[0].message
    (one,) = judge_situation(foreign | way_out | {"facts.output.runs": ["seed=1", "seed=2"]}).of("CKP008")
    assert "contains runs, as after a sweep or search: seed=1, seed=2" in one.message
    way = "set trainer.output_dir to a new folder, or add --sweep or --search with the values of these runs"
    assert one.hint == way, "one of these runs alone has another config"
    weights = {"facts.output.foreign_checkpoint": "/runs/a/model_checkpoints/900"}
    (one,) = judge_situation(foreign | way_out | weights).of("CKP008")
    assert "of another trainer, which cannot be resumed" in one.message
    assert "set model.pretrained_checkpoint to /runs/a/model_checkpoints/900" in one.hint
    (one,) = judge_situation(occupied | weights).of("CKP008")
    assert "checkpoints: 100, 200" in one.message


def test_weights_that_are_not_there_fail_at_their_key(judge_situation):
    resumes_from_nothing = RESUME | {"facts.resume.exists": False, "facts.resume.is_verified": False}
    for situation in ({}, {"facts.resume": None}, resumes_from_nothing):
        (finding,) = judge_situation(situation | {"facts.data.weights_reason": "it is not there"}).of(
            "DAT001"
        )
        assert (finding.path, finding.severity) == ("model.pretrained_checkpoint", Severity.FAIL)
    edits = {
        "facts.data.weights_key": "model.hidden_size",
        "facts.data.weights_hint": "set model.hidden_size",
    }
    (finding,) = judge_situation(edits | {"facts.data.weights_reason": "model.hidden_size is 64"}).of(
        "DAT001"
    )
    assert (finding.path, finding.hint) == ("model.hidden_size", "set model.hidden_size")


@pytest.mark.parametrize("selector", ["auto", "never"])
def test_damaged_weights_fail_at_their_key_with_the_way_out(selector, judge_situation):
    starts = WEIGHTS | {"config.trainer.resume_from_checkpoint": selector, "facts.resume.selector": selector}
    starts |= {"facts.resume.exists": False, "facts.resume.is_verified": False}
    assert judge_situation(starts).of("CKP007") == []
    assert judge_situation(starts | {"facts.data": None}).of("CKP007") == []
    damage = {"facts.data.weights_damage": "config.json changed", "facts.data.weights_hint": "restore it"}
    (finding,) = judge_situation(starts | damage).of("CKP007")
    assert (finding.path, finding.severity) == ("model.pretrained_checkpoint", Severity.FAIL)
    assert finding.hint == "restore it"


@pytest.mark.parametrize("weights", ["runs/first/7", "runs/first/7/model.safetensors"])
def test_the_tokenizer_of_the_weights_is_in_their_folder(weights, judge_situation):
    situations = RENUMBERED, WEIGHTS | {"facts.data.tokenizer_differences": ["seed: 1 in it"]}
    for situation in situations:
        (finding,) = judge_situation(situation | {"facts.data.weights": weights}).of("DAT029")
        assert (finding.path, finding.severity) == ("tokenizer", Severity.FAIL)
        assert finding.hint == "set tokenizer.path to runs/first/7"
        assert "runs/first/7" in finding.message


def test_without_facts_about_resuming_the_weights_are_judged(judge_situation):
    assert judge_situation(RENUMBERED | {"facts.resume": None}).of("DAT029")


@pytest.mark.parametrize("package", ["torch", "transformers", "datasets"])
def test_a_missing_and_an_old_package_are_named(package, judge_situation):
    unpinned = {"facts.software.pinned": {}, "config.dataset.name": "some/text"}
    installed = {
        "accelerate": "1.15.0",
        "datasets": "5.2.0",
        "numpy": "2.4",
        "psutil": "7",
        "pydantic": "2.14.3",
    }
    installed |= {"safetensors": "0.8", "tokenizers": "0.23", "torch": "2.11", "transformers": "5.17"}
    assert judge_situation(unpinned | {"facts.software.packages": installed}).of("HST001") == []
    old = judge_situation(unpinned | {"facts.software.packages": installed | {package: "1.0"}}).of("HST001")
    assert [finding.message.split()[0] for finding in old] == [package]
    missing = {name: version for name, version in installed.items() if name != package}
    absent = judge_situation(unpinned | {"facts.software.packages": missing}).of("HST001")
    assert [finding.message for finding in absent] == [f"{package} is not installed"]
    local = unpinned | {"config.dataset.name": None, "config.dataset.path": "text.txt"}
    off_hub = judge_situation(local | {"facts.software.packages": missing}).of("HST001")
    assert bool(off_hub) == (package != "datasets")


def test_the_incident_is_a_toy_even_where_each_single_thing_is_satisfied(judge_situation):
    tiny = {
        "config.model.hidden_size": 256,
        "config.model.num_attention_heads": 4,
        "config.model.num_hidden_layers": 8,
    }
    judged = judge_situation(tiny)
    assert {finding.code for finding in judged.findings if finding.severity is Severity.FAIL} == {"MOD001"}


def test_four_hundred_tokens_per_second_are_caught_whatever_the_config_says(judge_situation):
    """The measured speed of the incident on a sound config: 262,144 tokens a step take eleven minutes."""
    situation = {"config.guard.walltime_limit_hours": 72.0, "measured.step_time_s": 262_144 / 400}
    codes = {finding.code for finding in judge_situation(situation).findings}
    assert {"CKP002", "BUD001"} <= codes


@pytest.mark.parametrize(
    ("changes", "hint"),
    [
        ({"scheduler.decay_steps": 48001}, "lower scheduler.warmup_steps or lower scheduler.decay_steps"),
        (
            {"scheduler.decay_percent": 60.0, "scheduler.warmup_percent": 41.0},
            "lower scheduler.warmup_percent or lower scheduler.decay_percent",
        ),
        ({"scheduler.total_steps": 1999}, "lower scheduler.warmup_steps or raise scheduler.total_steps"),
    ],
)
def test_a_decay_during_the_warm_up_names_the_keys_in_force(changes, hint, judge_situation):
    base = {"config.trainer.max_steps": 50000}
    found = judge_situation(base | {f"config.{key}": value for key, value in changes.items()})
    assert hint in [finding.hint for finding in found.of("SCH001")]


@pytest.mark.parametrize("selector", ["auto", "checkpoints/9"])
@pytest.mark.parametrize(
    ("exists", "alternative", "hint"),
    [
        (True, "runs/a/checkpoints/8", "--resume runs/a/checkpoints/8"),
        (True, "my runs/checkpoints/8", "--resume 'my runs/checkpoints/8'"),
        (True, "", "from a copy"),
        (False, "runs/a/checkpoints/8", "--resume runs/a/checkpoints/8"),
        (False, "", "existing checkpoint folder"),
    ],
)
def test_the_way_out_of_a_broken_checkpoint_is_one_that_works(
    selector, exists, alternative, hint, judge_situation
):
    broken = {"is_verified": False, "selector": selector, "exists": exists, "alternative": alternative}
    found = judge_situation(RESUME | {f"facts.resume.{name}": value for name, value in broken.items()})
    hints = [finding.hint for finding in found.of("CKP007")]
    if selector == "auto" and not exists:
        assert hints == [], "there is nothing to go on from, which is a fresh start"
    else:
        assert hint in hints[0]
        assert "auto" not in hints[0]


def test_a_variable_that_an_argument_sets_is_told_with_the_keys_that_it_goes_into(judge_situation):
    every = "$variables.often"
    config = {"config.variables": {"often": 500}, "config.trainer.save_steps": every}
    config |= {"config.trainer.eval_steps": every, "overrides": ["variables.often=600"]}
    (finding,) = judge_situation(config).of("CFG008")
    reached = "trainer.eval_steps, trainer.save_steps"
    assert finding.message == f"variables.often is set on the command line, and is used by {reached}"
    assert (finding.path, finding.file) == ("variables.often", "<command line>")


OLD_DRIVER = {"facts.gpus.0.driver_version": "550.54.15"}


@pytest.mark.parametrize("trial", [{"device": "cpu"}, {"kernel_error": "cuda:0: no kernel image"}])
def test_an_old_driver_is_excused_only_by_a_device_that_computes(trial, judge_situation):
    facts = {f"facts.imports.{name}": value for name, value in trial.items()}
    (finding,) = judge_situation(OLD_DRIVER | facts).of("HST011")
    assert finding.severity is Severity.FAIL


def test_a_disk_without_room_is_told_of_once(judge_situation):
    full = {"facts.disk.free_mib": 14793, "facts.disk.reservation": "refused"}
    (finding,) = judge_situation(full).of("CKP004")
    assert "checkpoints need" in finding.message


@pytest.mark.parametrize(
    ("config", "hint"),
    [
        ({}, "remove model.vocab_size"),
        (
            {"config.model.pretrained_checkpoint": "base/checkpoints/latest"},
            "set tokenizer.path to the tokenizer of model.pretrained_checkpoint, /",
        ),
    ],
)
def test_a_tokenizer_of_another_model_needs_another_key_not_other_data(config, hint, judge_situation):
    prepared = {"max_token_id": 40000, "vocab_size": 50048}
    facts = {f"facts.inspection.prepared.{name}": value for name, value in prepared.items()}
    (finding,) = judge_situation({"config.model.vocab_size": 1024} | config | facts).of("DAT002")
    assert finding.hint.startswith(hint)


def test_a_checkpoint_to_continue_from_is_named_by_its_key(judge_situation):
    broken = {"facts.resume.is_verified": False, "facts.resume.reason": "sum differs"}
    (finding,) = judge_situation(CONTINUED | broken).of("CKP007")
    assert (finding.path, finding.hint.endswith("a checkpoint folder")) == ("trainer.continue_from", True)
    assert finding.message == "runs/first/checkpoints/800: sum differs"
    other = {"facts.resume.alternative": "runs/first/checkpoints/400"}
    (finding,) = judge_situation(CONTINUED | broken | other).of("CKP007")
    assert "such as runs/first/checkpoints/400" in finding.hint
    (finding,) = judge_situation(RESUME | broken).of("CKP007")
    assert finding.path == "trainer.resume_from_checkpoint"


@pytest.mark.parametrize(
    ("start", "differences", "hint"),
    [
        (RESUME, ["optimizer.name: 'adamw'"], "restore optimizer.name, or start a new run in another"),
        (
            CONTINUED,
            ["optimizer.name: 'adamw'"],
            "remove trainer.continue_from, and set model.pretrained_checkpoint to",
        ),
        (RESUME, ["trainer.ema_decay: 0.9"], "ema_decay: null until it saves a checkpoint"),
        (RESUME, ["datacollator.mlm_probability_final: 0.1"], "with version 0.2.0, or start a new run"),
        (CONTINUED, ["trainer.ema_decay: 0.9"], "or remove trainer.continue_from, and set model.pretrained_"),
        (CONTINUED, ["model.hidden_size: 192"], "restore model.hidden_size"),
        (
            CONTINUED,
            ["model.hidden_size: 192", "optimizer.name: 'adamw'"],
            "restore model.hidden_size, optimizer.name",
        ),
    ],
)
def test_the_way_on_from_another_run_s_checkpoint_leads_on(start, differences, hint, judge_situation):
    (finding,) = judge_situation(start | {"facts.resume.structural_differences": differences}).of("CKP007")
    assert hint in finding.hint
    assert ("pretrained" in finding.hint, "output_dir" in finding.hint) == (
        "pretrained" in hint,
        start is RESUME,
    )


@pytest.mark.parametrize(("is_other_run", "codes"), [(False, {"CKP016", "SCH005"}), (True, {"CKP007"})])
def test_a_checkpoint_of_a_different_run_has_no_further_differences(is_other_run, codes, judge_situation):
    changed = {
        "facts.resume.learning_rate": 1e-9,
        "facts.resume.numeric_differences": ["optimizer.weight_decay: 0.1 in the checkpoint"],
        "facts.resume.structural_differences": ["seed: 1 in the checkpoint"] * is_other_run,
    }
    report = judge_situation(RESUME | changed)
    assert {code for code in ("CKP007", "CKP016", "SCH005") if report.of(code)} == codes


@pytest.mark.parametrize(
    ("start", "path"), [(RESUME, "trainer.resume_from_checkpoint"), (CONTINUED, "trainer.continue_from")]
)
def test_another_rate_is_named_by_the_key_that_chose_the_checkpoint(start, path, judge_situation):
    (finding,) = judge_situation(start | {"facts.resume.learning_rate": 1e-9}).of("SCH005")
    assert finding.path == path


@pytest.mark.parametrize(
    ("changes", "count"),
    [
        ({"config.optimizer.muon_lr": 0.02}, 1),
        ({"config.optimizer.muon_lr": 0.004}, 0),
        ({"config.optimizer.muon_lr": None, "config.optimizer.lr": 0.004}, 0),
        ({"config.optimizer.muon_lr": 0.02, "facts.resume.muon_peak": None}, 0),
        ({"config.optimizer.muon_lr": 0.02, "config.optimizer.name": "adamw"}, 0),
    ],
)
def test_another_peak_rate_of_muon_is_named(changes, count, judge_situation):
    muon = CONTINUED | {
        "config.optimizer.name": "muon",
        "facts.resume.muon_peak": 0.004,
        "facts.resume.schedule_differences": [],
    }
    found = judge_situation(muon | changes).of("SCH005")
    assert [each.hint for each in found] == ["set optimizer.muon_lr to 0.004"] * count


def test_the_same_schedule_has_no_other_rate_where_epochs_end_the_run(judge_situation):
    estimated = RESUME | {"facts.resume.learning_rate": 1e-9, "config.trainer.max_epochs": 3.0}
    assert judge_situation(estimated).of("SCH005")
    assert not judge_situation(estimated | {"facts.resume.schedule_differences": []}).of("SCH005")


@pytest.mark.parametrize(
    ("code", "field", "more"),
    [
        ("SCH005", "schedule_differences", {"facts.resume.learning_rate": 1e-9}),
        ("CKP007", "structural_differences", {}),
        ("CKP016", "numeric_differences", {}),
    ],
)
def test_a_resume_with_other_values_is_placed_at_the_key_of_the_user(code, field, more, judge_situation):
    """The profile's line about resuming is right, and the first key that differs may be the profile's too."""
    differing = [
        f"{key}: 7 in the checkpoint, 8 in this run" for key in ("optimizer.eps", "trainer.max_steps")
    ]
    changes = more | {f"facts.resume.{field}": differing, "config.trainer.max_steps": 60_000}
    (found,) = judge_situation(RESUME | changes).of(code)
    assert found.path == "trainer.max_steps"
    assert found.file.endswith("run.yaml")

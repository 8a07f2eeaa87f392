"""What nothing is wrong with: variations of the production profiles, and the machine made for each."""

import json
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from neobert.config.schedules import learning_rate_at
from neobert.plan import Plan
from profiles.registry import ResolvedRun, list_profiles, load_profile
from validators.facts import Facts
from validators.facts_io import facts_from_json

HEALTHY = Path(__file__).parent / "fixtures" / "facts.json"
PRODUCTION = [name for name in list_profiles() if load_profile(name).kind == "production"]
ENCODERS = [
    name
    for name in PRODUCTION
    if load_profile(name).config.task == "pretrain" and load_profile(name).requires.gpu
]
CARDS: dict[str, dict[str, Any]] = {
    "A100": {"name": "NVIDIA A100-SXM4-80GB", "memory_total_mib": 81_920, "compute_capability": [8, 0]},
    "H100": {"name": "NVIDIA H100 80GB HBM3", "memory_total_mib": 81_559, "compute_capability": [9, 0]},
    "H200": {"name": "NVIDIA H200", "memory_total_mib": 143_771, "compute_capability": [9, 0]},
}
KERNELS = {"triton": "3.6.0", "quack-kernels": "0.6.5", "flash-attn-4": "4.0.0b5", "flash-attn-3": "3.0.0"}
ACHIEVED = {
    "A100": {"gemm_flops": 2.6e14, "burst_flops": 2.7e14, "copy_bytes_per_s": 1.7e12},
    "H100": {"gemm_flops": 6.9e14, "burst_flops": 7.9e14, "copy_bytes_per_s": 2.8e12},
    "H200": {"gemm_flops": 7.0e14, "burst_flops": 7.9e14, "copy_bytes_per_s": 4.2e12},
}


def sound_facts(run: ResolvedRun, plan: Plan) -> Facts:
    """Facts of a healthy machine with the GPUs and the room that the run needs, everything measured."""
    gpu, count = _gpu(run), plan.world_size.value
    recorded = json.loads(HEALTHY.read_text(encoding="utf-8"))
    recorded["gpus"] = _each(recorded["gpus"][0] | CARDS[gpu], count)
    for group in ("gpu_health", "gpu_load"):
        recorded[group] = _each(recorded[group][0], count)
    device = recorded["devices"][0] | {"name": CARDS[gpu]["name"]} | ACHIEVED[gpu]
    recorded["devices"] = [device | {"index": index} for index in range(count)]
    recorded["disk"]["free_mib"] += int(2 * plan.checkpoint_tree_mib.value)
    recorded["disk"]["free_inodes"] += 100 * plan.num_saves.value
    recorded["software"]["packages"] |= KERNELS
    recorded["imports"]["num_devices"] = count
    for rank in recorded["distributed"]["ranks"]:
        rank["config_digest"] = run.digest
    size = plan.vocab_size.value
    share = run.config.datacollator.mlm_probability
    recorded["inspection"]["prepared"] |= {
        "vocab_size": size,
        "max_token_id": size - 1,
        "masked_share": share,
    }
    if run.config.task == "contrastive":
        recorded["inspection"]["prepared"]["pairs"] = PAIRS
    recorded["numerics"]["device"] = CARDS[gpu]["name"]
    recorded["rehearsal"] |= _rehearsed(recorded["rehearsal"], run, plan)
    return facts_from_json(json.dumps(recorded))


def _gpu(run: ResolvedRun) -> str:
    """Return the GPU of a profile; those for any GPU get an A100."""
    assert run.profile is not None
    return run.profile.requires.gpu or "A100"


PAIRS = {"per_step": 500.0, "false_share": 0.0, "eval_shared": 0.0, "source_shared": 0.0}
OF_A_DECODER = {
    "isolation": 0.0, "causal": 0.0, "equality": 1.0, "positions": 0, "different": 0.1, "same": 0.0,
    "shift": 0.1, "next": 1.0,
}  # fmt: skip


def _rehearsed(recorded: dict[str, Any], run: ResolvedRun, plan: Plan) -> dict[str, Any]:
    """A rehearsal that went as planned."""
    pace, step_s = plan.tokens_per_second.value, plan.step_time_s.value
    memory = {
        "peak_allocated_mib": int(plan.memory_mib.value),
        "peak_reserved_mib": int(plan.memory_mib.value),
    }
    layers = run.config.model.num_hidden_layers
    requested = getattr(run.config.model, "attn_backend", "torch_varlen")
    named = {"torch_varlen": "torch_varlen", "flash_attn_varlen": "flash_attn_2"}
    attention = named.get(requested, recorded["attention"]["resolved"])
    peak = run.config.optimizer.lr
    rates = [
        place | {"learning_rate": learning_rate_at(place["step"] - 1, peak, plan.schedule)}
        for place in recorded["schedule"]
    ]
    answers = recorded["answers"]
    if plan.shape.attention.is_causal:
        answers = [{"kind": kind, "subject": kind, "value": value} for kind, value in OF_A_DECODER.items()]
    return {
        "answers": answers,
        "num_ranks": plan.world_size.value,
        "device_name": CARDS[_gpu(run)]["name"],
        "speed": recorded["speed"] | {"step_time_s": step_s, "tokens_per_second": pace,
                                      "mfu": run.profile.expects.mfu if run.profile else plan.mfu.value,
                                      "line_step_times_s": [step_s] * 8},
        "baseline_tokens_per_second": pace,
        "save_s": min(recorded["save_s"], plan.save_interval_steps.value * step_s),
        "attention": {"resolved": attention, "has_mask_with_packing": False, "ran": [attention] * layers},
        "schedule": rates,
        "memory": recorded["memory"] | memory,
    }  # fmt: skip


def _each(one: dict[str, Any], count: int) -> list[dict[str, Any]]:
    return [one | {"index": index, "uuid": f"GPU-{index}"} for index in range(count)]


@st.composite
def sound_runs(draw: st.DrawFn) -> tuple[str, dict[str, Any]]:
    """A profile's name, and a sound choice of size, batch, schedule and cadence to write on top of it."""
    name = draw(st.sampled_from(ENCODERS))
    profile = load_profile(name).config
    longest = profile.dataset.max_seq_length
    length = draw(st.sampled_from([longest // 2, longest * 3 // 4, longest]))
    heads = draw(st.integers(10, 16))
    highest_rate = 2e-3 if profile.model.pretrained_checkpoint is None else 9e-4
    attention = draw(st.sampled_from(["auto", "flash_attn_varlen", "torch_varlen"]))
    kernels = ["auto", "torch"] + (["triton"] if attention == "auto" else [])
    if attention == "auto" and load_profile(name).requires.gpu in ("H100", "H200"):
        kernels.append("fused")
    rows = draw(st.sampled_from([8, 16, 24])) * 1024 // longest
    accumulation = draw(st.integers(48, 96))
    max_steps = draw(st.integers(60_000, 200_000))
    warmup, save_steps = draw(st.integers(0, 5_000)), draw(st.integers(10, 50))
    return name, {
        "seed": draw(st.integers(0, 2**31)),
        "model": {
            "hidden_size": 64 * heads,
            "num_attention_heads": heads,
            "num_hidden_layers": draw(st.integers(12, 28)),
            "intermediate_size": 288 * heads,  # two thirds of it are a multiple of 64, as fused needs
            "tie_word_embeddings": draw(st.booleans()),
            "attn_backend": attention,
            "kernel_backend": draw(st.sampled_from(kernels)),
            "max_position_embeddings": draw(st.sampled_from([length, 2 * length])),
        },
        "dataset": {"max_seq_length": length, "min_length": draw(st.integers(1, 16))},
        "datacollator": {"mlm_probability": draw(st.floats(0.15, 0.4)), "mask_all": draw(st.booleans())},
        "optimizer": {
            "weight_decay": draw(st.floats(0, 0.2)),
            "lr": draw(st.floats(1e-4, highest_rate)),
            "betas": [0.9, draw(st.sampled_from([0.95, 0.999]))],
        },
        "scheduler": {
            "name": draw(st.sampled_from(["cosine", "linear"])),
            "warmup_steps": warmup,
            "decay_steps": draw(st.none() | st.integers(1, max_steps - warmup)),
        },
        "trainer": {
            "max_steps": max_steps,
            "per_device_train_batch_size": rows,
            "gradient_accumulation_steps": accumulation,
            "global_batch_size": rows * accumulation * profile.distributed.nproc_per_node,
            "save_steps": save_steps,
            "save_total_limit": draw(st.sampled_from([0, 2, 5])),
            "save_keep_every": draw(st.sampled_from([0, 200 * save_steps])),
            "gradient_clipping": draw(st.sampled_from([None, 0.5, 1.0])),
            "logging_steps": draw(st.integers(1, 100)),
            "torch_compile": draw(st.booleans()),
            "eval_steps": draw(st.just(0) | st.integers(50, max_steps)),
        },
    }

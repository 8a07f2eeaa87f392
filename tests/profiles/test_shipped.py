"""The profiles that are shipped: locked, self-consistent, a fixed point, and what their names promise."""

import json
from pathlib import Path

import pytest

from neobert.config import all_keys, digest, from_dict, load_document, resolve, to_dict
from neobert.families.rotary_base import extended_base
from neobert.plan import Plan, assumptions_for, build_plan
from profiles.inherit import SHIPPED
from profiles.registry import Profile, list_profiles, load_profile, resolve_run

SHARDED = ["llama-8b-8xh100", "qwen-7b-4xh100"]
DECODERS = ["llama-1b-h100", "qwen-0.5b-h200", *SHARDED]
CONTINUED = ["contrastive-h200", "long-context"]
ENCODERS = ["2xa100-prod", "8xh200-prod", "a100-prod", "h100-prod", "h200-prod", *CONTINUED]
PRODUCTION = [*ENCODERS, *DECODERS]
SMOKE = [
    "causal-demo",
    "contrastive-demo",
    "cpu-classify",
    "cpu-demo",
    "gpu-smoke",
    "l40s-dev",
    "nsa-smoke",
    "sft-demo",
]
DEVELOPMENT = ["cpu", "gpu"]
NAMES = sorted([*PRODUCTION, *SMOKE, *DEVELOPMENT])


WRITTEN = (
    "model.hidden_size", "dataset.max_seq_length", "datacollator.pack_sequences",
    "optimizer.lr", "trainer.output_dir", "trainer.max_steps", "trainer.mixed_precision",
    "trainer.gradient_checkpointing", "trainer.save_steps", "trainer.save_total_limit", "trainer.eval_steps",
    "distributed.nproc_per_node",
)  # fmt: skip
"""Keys that are not left to a default."""


def plan_of(profile: Profile) -> Plan:
    requires = profile.requires
    gpu = (requires.gpu or "A100") if requires.device == "cuda" else None
    return build_plan(profile.config, assumptions_for(gpu, requires.gpu_memory_gib, profile.expects.mfu))


def test_the_list_is_complete_and_sorted():
    assert list_profiles() == tuple(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_locked_named_and_kept_in_its_folder(name):
    profile = load_profile(name)
    assert profile.is_locked
    assert profile.config.profile == profile.name == name
    assert Path(profile.files[0]).parent.name == profile.kind
    assert profile.intent.endswith(".")
    for key in all_keys():
        origin = profile.origins[key]
        assert origin.kind in ("profile", "default")
        assert origin.kind == "default" or (origin.file in profile.files and origin.line > 0)
    assert [key for key in WRITTEN if profile.origins[key].kind != "profile"] == []


@pytest.mark.parametrize("name", NAMES)
def test_a_profile_is_a_fixed_point(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # paths of a run file are relative to it
    profile = load_profile(name)
    path = Path("resolved.yaml")
    path.write_text(json.dumps(to_dict(profile.config)))
    loaded = resolve([load_document(path)])
    assert loaded.config == profile.config
    assert loaded.digest == digest(profile.config)
    assert from_dict(to_dict(profile.config)) == profile.config
    run = resolve_run(None, [path])
    assert (run.digest, run.profile) == (loaded.digest, profile)


def test_no_two_profiles_share_an_output_directory():
    assert len({load_profile(name).config.trainer.output_dir for name in NAMES}) == len(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_hardware_processes_and_lengths_agree(name):
    profile = load_profile(name)
    config = profile.config
    world_size = config.distributed.nproc_per_node * config.distributed.nnodes
    assert world_size == max(1, profile.requires.num_gpus)
    assert config.model.max_position_embeddings is None
    if config.model.type == "hf":
        assert profile.origins["model.architecture"].kind == "profile"
    if config.model.type != "neobert":  # the others have no keys of kernels
        return
    assert profile.origins["model.attn_backend"].kind == "profile"
    if profile.requires.device == "cpu":
        assert config.model.attn_backend == "sdpa"
    else:
        kernels = (config.model.attn_backend, config.model.kernel_backend)
        named = [("auto", "triton"), ("auto", "fused")]  # for masked tokens only
        assert kernels in ([("auto", "auto")] if name in (*DEVELOPMENT, "contrastive-h200") else named)


@pytest.mark.parametrize("name", PRODUCTION)
def test_a_production_profile_is_no_toy_and_risks_little(name):
    profile = load_profile(name)
    config, plan = profile.config, plan_of(profile)
    assert profile.kind == "production"
    assert config.trainer.mixed_precision == "bf16"
    assert config.trainer.save_total_limit >= 2
    assert (config.tokenizer.revision is None) == (name in CONTINUED)  # it has that of its weights
    assert config.dataset.validation_split is not None
    assert config.trainer.eval_max_batches is not None
    assert plan.global_batch_size.value == config.trainer.global_batch_size
    assert plan.num_parameters.value > 200e6
    assert plan.minutes_at_risk.value is not None
    assert plan.minutes_at_risk.value < 30


@pytest.mark.parametrize("name", [*PRODUCTION, "l40s-dev"])
def test_no_profile_recomputes_activations_that_fit(name):
    profile = load_profile(name)
    plan = plan_of(profile)
    assert not profile.config.trainer.gradient_checkpointing
    assert " without checkpointing; " in plan.activations_mib.reason
    most = 0.8 if name in SHARDED else 0.75
    assert plan.memory_mib.value < most * plan.device_memory_mib.value


@pytest.mark.parametrize("name", SHARDED)
def test_a_sharded_profile_fits_only_with_freed_blocks(name):
    config, plan = load_profile(name).config, plan_of(load_profile(name))
    assert (config.distributed.mode, config.distributed.reshard_after_forward) == ("fsdp2", None)
    assert plan.reshards.value is True
    assert "derived from the plan, never run" in load_profile(name).intent


MEASURED = ("h100-prod", "h200-prod")


@pytest.mark.parametrize("name", [name for name in PRODUCTION if name != "long-context"])  # of any card
def test_the_expected_rate_brackets_what_the_plan_predicts(name):
    profile = load_profile(name)
    assert profile.expects.is_estimate == ("never run" in profile.intent) == (name not in MEASURED)
    assert profile.expects.tokens_per_second is not None
    low, high = profile.expects.tokens_per_second
    assert low < plan_of(profile).tokens_per_second.value < high


@pytest.mark.parametrize("name", [name for name in PRODUCTION if name not in CONTINUED])
def test_a_profile_that_starts_from_nothing_sees_enough_text(name):
    least = 20 if name in DECODERS else 40
    assert plan_of(load_profile(name)).tokens_per_parameter.value > least


def test_embeddings_continue_h200_prod():
    first, second = load_profile("h200-prod").config, load_profile("contrastive-h200").config
    assert second.model.pretrained_checkpoint == f"{first.trainer.output_dir}/checkpoints/latest"
    assert second.dataset.max_seq_length <= first.dataset.max_seq_length


def test_long_context_continues_a100_prod():
    first, second = load_profile("a100-prod").config, load_profile("long-context").config
    assert second.model.pretrained_checkpoint == f"{first.trainer.output_dir}/checkpoints/latest"
    assert second.dataset.max_seq_length == 4096
    assert second.dataset.min_length == first.dataset.max_seq_length
    assert second.model.rope_theta == extended_base(first.model.rope_theta, 1024, 4096, 64)
    assert load_profile("long-context").requires.gpu is None
    of_both = (load_profile(name).config.trainer for name in ("a100-prod", "long-context"))
    assert (
        len({each.per_device_eval_batch_size * row for each, row in zip(of_both, (1024, 4096), strict=True)})
        == 1
    )
    assert second.optimizer.lr < first.optimizer.lr
    assert second.scheduler.warmup_steps * 10 <= second.trainer.max_steps
    shape = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
    assert [getattr(first.model, key) for key in shape] == [getattr(second.model, key) for key in shape]


@pytest.mark.parametrize(
    ("single", "several", "more"),
    [
        ("a100-prod", "2xa100-prod", set()),
        ("h200-prod", "8xh200-prod", {"trainer.per_device_train_batch_size"}),
    ],
)
def test_several_cards_train_batch_for_batch_what_one_does(single, several, more):
    one, many = to_dict(load_profile(single).config), to_dict(load_profile(several).config)
    differing = {
        f"{section}.{key}"
        for section, keys in one.items()
        if isinstance(keys, dict)
        for key in keys
        if keys[key] != many[section][key]
    }
    assert differing == more | {
        "distributed.nproc_per_node",
        "trainer.gradient_accumulation_steps",
        "trainer.output_dir",
        "trainer.save_steps",
    }


@pytest.mark.parametrize("name", SMOKE)
def test_a_smoke_profile_is_short_and_needs_no_network(name):
    profile = load_profile(name)
    assert profile.kind == "smoke"
    assert profile.config.dataset.name.startswith("builtin:")
    assert profile.config.tokenizer.name is None
    assert plan_of(profile).eta_s.value < 10 * 60


@pytest.mark.parametrize("name", DEVELOPMENT)
def test_a_development_profile_brings_no_data_and_follows_the_length_of_a_run(name):
    profile = load_profile(name)
    dataset, trainer = profile.config.dataset, profile.config.trainer
    assert profile.kind == "development"
    assert (dataset.path, dataset.name, dataset.mixture) == (None, None, ())
    assert profile.config.tokenizer.name is None
    assert profile.config.scheduler.warmup_percent
    assert trainer.resume_from_checkpoint == "auto"


def test_bases_are_no_profiles_to_run():
    assert {path.stem for path in (SHIPPED / "base").glob("*.yaml")} == {"_neobert"}

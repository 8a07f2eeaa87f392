"""Memory of one rank of a sharded model, against bytes counted by hand for two released shapes.

Qwen2.5-3B has 36 blocks of 77,076,992 weights, a last norm of 2,048, and 151,936 x 2,048 embeddings, which
are the head too. Qwen2.5-7B has 28 blocks of 233,057,792, a last norm of 3,584, and embeddings and a head of
152,064 x 3,584 each.
"""

import json

import pytest

from neobert.config import from_dict
from neobert.families.table import model_shape
from neobert.plan import assumptions_for, build_plan
from neobert.plan.memory import choose_resharding, predict_memory

SHAPES = {
    "3b": {
        "hidden_size": 2048,
        "num_hidden_layers": 36,
        "num_attention_heads": 16,
        "intermediate_size": 11008,
    },
    "7b": {
        "hidden_size": 3584,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "intermediate_size": 18944,
    },
}
ROWS = {"3b": 151_936, "7b": 152_064}
BLOCKS = {"3b": 36 * 77_076_992 + 2_048, "7b": 28 * 233_057_792 + 3_584}
ENDS = {"3b": 151_936 * 2_048, "7b": 2 * 152_064 * 3_584}
H100 = assumptions_for("H100", 80, 0.4)


@pytest.fixture
def run_of(tmp_path):
    def of(name: str, ranks: int, mode: str = "fsdp2", frees: bool | None = True, **trainer):
        heads = {"num_key_value_heads": 2 if name == "3b" else 4, "tie_word_embeddings": name == "3b"}
        config = {"model_type": "qwen2", **SHAPES[name], **heads}
        (tmp_path / "config.json").write_text(json.dumps(config))
        sharing = {"nproc_per_node": ranks, "mode": mode, "reshard_after_forward": frees}
        return from_dict(
            {
                "task": "causal",
                "model": {"type": "hf", "config": str(tmp_path), "vocab_size": ROWS[name]},
                "dataset": {"max_seq_length": 2048},
                "datacollator": {"pack_sequences": True},
                "trainer": {
                    "per_device_train_batch_size": 2,
                    "gradient_accumulation_steps": 4,
                    "gradient_checkpointing": True,
                    **trainer,
                },
                "distributed": sharing,
            }
        )

    return of


def predicted(config, frees):
    shape = model_shape(config, config.model.vocab_size)
    return predict_memory(config, shape, 4096, is_cuda=True, kernels="torch", reshards=frees)


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("name", SHAPES)
def test_state_of_a_rank_that_frees_blocks(run_of, name, ranks):
    memory, layers = predicted(run_of(name, ranks), frees=True), SHAPES[name]["num_hidden_layers"]
    blocks, ends = BLOCKS[name], ENDS[name]
    if ranks == 1:  # as replicated: fp32 weights, bf16 copies, fp32 gradients and two moments
        weights, gradients = (blocks + ends) * (4 + 2), (blocks + ends) * 4
    else:
        own = (blocks + ends) * 4 / ranks
        weights = own + 3 * blocks / layers * 2 + ends * (4 + 2)  # three blocks in bf16
        held = (memory.activations_mib + memory.logits_mib) * 2**20
        gradients = own + max(blocks / layers * (2 + 4 + 4), ends * 4 - held)
    assert memory.weights_mib == pytest.approx(weights / 2**20)
    assert memory.gradients_mib == pytest.approx(gradients / 2**20)
    assert memory.optimizer_mib == pytest.approx((blocks + ends) * 8 / ranks / 2**20)


@pytest.mark.parametrize(("accumulation", "gradients"), [(4, 4), (1, 1)])
def test_a_rank_that_keeps_blocks_has_all_of_them_in_bf16(run_of, accumulation, gradients):
    """Gradients stay whole between the microbatches of a step."""
    memory = predicted(run_of("3b", 4, frees=False, gradient_accumulation_steps=accumulation), frees=False)
    total = BLOCKS["3b"] + ENDS["3b"]
    assert memory.weights_mib == pytest.approx((total + BLOCKS["3b"] * 2 + ENDS["3b"] * 6) / 2**20)
    exchange = 0 if accumulation > 1 else BLOCKS["3b"] / 36 * 10
    assert memory.gradients_mib == pytest.approx((total * gradients + exchange) / 2**20)


def test_blocks_that_are_gathered_in_fp32_have_copies(run_of):
    """fp32 runs have no copies; the kernels of NeoBERT read fp32 weights."""
    memory = predicted(run_of("3b", 4, mixed_precision="no"), frees=True)
    weights = (BLOCKS["3b"] + ENDS["3b"]) + 3 * BLOCKS["3b"] / 36 * 4 + ENDS["3b"] * 4
    assert memory.weights_mib == pytest.approx(weights / 2**20)


@pytest.mark.parametrize(
    ("name", "ranks", "device_mib", "chosen", "reason"),
    [
        ("3b", 2, 80 * 1024, False, "all blocks at once, because with all blocks at once a step needs 4"),
        ("7b", 4, 80 * 1024, True, "one block at a time, because with all blocks at once a step needs 7"),
        ("7b", 4, None, False, "all blocks at once, because the memory of the device is unknown"),
        ("7b", 1, 80 * 1024, None, "the model is not sharded"),
    ],
)
def test_the_plan_frees_blocks_where_all_do_not_fit(run_of, name, ranks, device_mib, chosen, reason):
    config = run_of(name, ranks, frees=None)
    shape = model_shape(config, config.model.vocab_size)
    found = choose_resharding(config, shape, device_mib, is_cuda=True, kernels="torch")
    assert (found.value, found.reason[: len(reason)]) == (chosen, reason)


def test_a_key_overrides_the_choice(run_of):
    plan = build_plan(run_of("3b", 2, frees=True), H100)
    assert plan.reshards.value is True
    assert plan.reshards.reason == "one block at a time, because distributed.reshard_after_forward is true"


def test_a_plan_of_shards_says_that_torch_reserves_more(run_of):
    whole, shards = (build_plan(run_of("3b", ranks, frees=None), H100).memory_mib for ranks in (1, 2))
    assert "torch reserves" in shards.reason
    assert "torch reserves" not in whole.reason

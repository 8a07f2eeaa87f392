"""The plan's arithmetic against the model that is trained: parameters exactly, kept activations closely."""

from dataclasses import replace

import pytest

from neobert.config.schema import ModelConfig, RunConfig, TrainerConfig
from neobert.families.table import model_shape
from neobert.plan.memory import activation_bytes

torch = pytest.importorskip("torch")

from neobert.model import NeoBERTLMHead  # noqa: E402  only where torch is
from neobert.model.build import build_model_config  # noqa: E402
from tests.kept_memory import counting_kept  # noqa: E402

TINY = ModelConfig(hidden_size=128, num_attention_heads=2, num_hidden_layers=3, intermediate_size=512)
VOCAB_SIZE, TOKENS = 256, 512


def build(model):
    return NeoBERTLMHead(build_model_config(model, VOCAB_SIZE, 0, "sdpa", "torch"))


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"tie_word_embeddings": True},
        {"rms_norm": False},
        {"hidden_act": "gelu"},
        {"rope": False, "max_position_embeddings": 1024},
        {"intermediate_size": 505},
    ],
)
def test_every_parameter_is_counted(change):
    model = replace(TINY, **change)
    with torch.device("meta"):
        parameters = {id(parameter): parameter.numel() for parameter in build(model).parameters()}
    assert model_shape(RunConfig(model=model), VOCAB_SIZE).parameters.total == sum(parameters.values())


def kept_bytes(config):
    model = build(config.model).train()
    if config.trainer.gradient_checkpointing:
        model.enable_gradient_checkpointing()
    positions = torch.arange(TOKENS)
    boundaries = torch.tensor([0, TOKENS], dtype=torch.int32)
    is_half = config.trainer.mixed_precision == "bf16"
    with counting_kept(model) as kept, torch.autocast("cpu", torch.bfloat16, enabled=is_half):
        model.model(
            input_ids=positions % VOCAB_SIZE,
            position_ids=positions,
            cu_seqlens=boundaries,
            max_seqlen=TOKENS,
        )
    return sum(kept.values())


def predicted_growth(shallow, deep):
    fewer, more = (activation_bytes(run, model_shape(run, 1), "torch") for run in (shallow, deep))
    return TOKENS * (more - fewer)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_kept_activations_grow_with_depth_as_predicted(precision):
    """A difference of depths leaves out what is kept once; bf16 copies of weights count as weights."""
    trainer = TrainerConfig(mixed_precision=precision)
    shallow, deep = (RunConfig(model=replace(TINY, num_hidden_layers=n), trainer=trainer) for n in (2, 6))
    weights = model_shape(deep, 1).parameters.linear - model_shape(shallow, 1).parameters.linear
    copies = 2 * weights if precision == "bf16" else 0
    measured = kept_bytes(deep) - kept_bytes(shallow) - copies
    assert predicted_growth(shallow, deep) == pytest.approx(measured, rel=0.05)


def test_recomputed_blocks_keep_their_input_only():
    trainer = TrainerConfig(mixed_precision="bf16", gradient_checkpointing=True)
    shallow, deep = (RunConfig(model=replace(TINY, num_hidden_layers=n), trainer=trainer) for n in (2, 6))
    measured = kept_bytes(deep) - kept_bytes(shallow)
    assert predicted_growth(shallow, deep) == pytest.approx(measured, rel=0.05)

"""The plan's count of moments against the optimizer that is trained with."""

import pytest

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import ModelConfig, OptimizerConfig, RunConfig
from neobert.families.table import model_shape
from neobert.plan import assumptions_for, build_plan
from neobert.plan.memory import count_optimizer_values

torch = pytest.importorskip("torch")

from neobert.families.neobert.build import backbone_from_model  # noqa: E402  only where torch is
from neobert.model import NeoBERTLMHead  # noqa: E402
from neobert.model.build import build_model_config  # noqa: E402
from neobert.optim import build_optimizer  # noqa: E402

TINY = ModelConfig(hidden_size=32, num_attention_heads=2, num_hidden_layers=3, intermediate_size=64)
VOCAB_SIZE = 64


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_every_moment_is_counted(name):
    config = OptimizerConfig(name=name)
    model = NeoBERTLMHead(build_model_config(TINY, VOCAB_SIZE, 0, "sdpa", "torch"))
    optimizer = build_optimizer(config, model, backbone_from_model(model).layouts)
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    optimizer.step()
    kept = [value for state in optimizer.state.values() for key, value in state.items() if key != "step"]
    planned = count_optimizer_values(config, model_shape(RunConfig(model=TINY), VOCAB_SIZE).parameters)
    assert planned.value == sum(value.numel() for value in kept)


def test_muon_takes_less_memory_and_smaller_checkpoints():
    plans = [
        build_plan(RunConfig(optimizer=OptimizerConfig(name=name)), assumptions_for("A100", 80, 0.35))
        for name in ("adamw", "muon")
    ]
    linear_mib = plans[0].num_linear_parameters.value * 4 / 2**20
    for field in ("optimizer_mib", "checkpoint_mib", "memory_mib"):
        adamw, muon = (getattr(plan, field).value for plan in plans)
        assert adamw - muon == pytest.approx(linear_mib), field
    assert "under Muon" in plans[1].optimizer_mib.reason

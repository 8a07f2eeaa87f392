"""What each of two ranks runs: a model spread over them by fully_shard against the same model whole."""

import copy
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from neobert.config.schema import OptimizerConfig
from neobert.families.neobert.build import backbone_from_model
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.optim import build_optimizer
from neobert.optim.newton_schulz import orthogonalize
from neobert.optim.qk_clip import QKClip
from neobert.train import exit_process

# Two ranks of heads of 6 channels: 54 rows of qkv fall apart in the middle of a head.
SHAPE: dict[str, Any] = {
    "vocab_size": 33,
    "hidden_size": 18,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 30,
    "max_position_embeddings": 16,
    "pad_token_id": 0,
    "attn_backend": "sdpa",
}
CONFIG = OptimizerConfig(name="muon", lr=1e-2, weight_decay=0.1)


def make_pair() -> tuple[nn.Module, nn.Module]:
    """The same model twice: whole, and spread over the ranks."""
    torch.manual_seed(0)
    whole = NeoBERTLMHead(NeoBERTConfig(**SHAPE))
    spread = copy.deepcopy(whole)
    mesh = init_device_mesh("cpu", (2,))
    for block in spread.model.transformer_encoder:
        fully_shard(block, mesh=mesh)
    fully_shard(spread, mesh=mesh)
    return whole, spread


def full(tensor: Tensor) -> Tensor:
    """All of it, on every rank."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def set_gradients(whole: nn.Module, spread: nn.Module, seed: int) -> None:
    """Give both the same gradients."""
    draw = torch.Generator().manual_seed(seed)
    for mine, part in zip(whole.parameters(), spread.parameters(), strict=True):
        mine.grad = torch.randn(mine.shape, generator=draw)
        part.grad = distribute_tensor(mine.grad, part.device_mesh, part.placements)


def assert_same(whole: nn.Module, spread: nn.Module) -> None:
    """Every weight is the same, whichever way it is held."""
    for (name, mine), part in zip(whole.named_parameters(), spread.parameters(), strict=True):
        assert isinstance(part, DTensor), name
        torch.testing.assert_close(full(part.detach()), mine.detach(), rtol=1e-6, atol=1e-7, msg=name)


def updates() -> None:
    """Three steps of Muon with AdamW, and with a verdict on the gradient."""
    whole, spread = make_pair()
    optimizers = (
        build_optimizer(CONFIG, whole, backbone_from_model(whole).layouts),
        build_optimizer(CONFIG, spread, backbone_from_model(spread).layouts),
    )
    for seed in range(3):
        set_gradients(whole, spread, seed)
        for optimizer in optimizers:
            optimizer.found_inf = torch.zeros(()) if seed else None
            optimizer.step()
        assert_same(whole, spread)
    state = get_optimizer_state_dict(spread, optimizers[1])["state"]
    assert "momentum_buffer" in state["model.transformer_encoder.0.qkv.weight"]
    assert "exp_avg" in state["decoder.weight"]


def orthogonalizing_parts_differs() -> None:
    """Negative control: each rank's rows by themselves give another update than the matrix."""
    torch.manual_seed(0)
    matrix = torch.randn(1, 18, 18)
    parts = torch.cat([orthogonalize(part, 5) for part in matrix.chunk(2, dim=1)], dim=1)
    assert (parts - orthogonalize(matrix, 5)).abs().max() > 0.05


def clips() -> None:
    """Ranks that see other documents agree, and shrink the parts that they hold."""
    whole, spread = make_pair()
    with torch.no_grad():
        for model in (whole, spread):
            for block in model.model.transformer_encoder:
                block.qkv.weight.mul_(30)
    inputs = [
        {
            "input_ids": torch.randint(1, 33, (16,), generator=torch.Generator().manual_seed(rank)),
            "position_ids": torch.cat([torch.arange(7), torch.arange(9)]),
            "cu_seqlens": torch.tensor([0, 7, 16], dtype=torch.int32),
            "attention_mask": None,
        }
        for rank in range(2)
    ]
    settings = {"threshold": 1e-3, "alpha": 0.5, "interval": 1, "chunk_size": 8}
    clip = QKClip(spread.model, **settings)
    clip(inputs[dist.get_rank()])
    alone = QKClip(whole.model, **settings)
    highest = torch.stack([alone._meter.measure(each) for each in inputs]).amax(0)
    torch.testing.assert_close(clip.highest, highest)
    alone._meter.measure = lambda _: highest.clone()
    alone(inputs[0])
    assert_same(whole, spread)
    assert (highest > settings["threshold"]).all()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.set_num_threads(1)
    for what in (updates, orthogonalizing_parts_differs, clips):
        what()
        dist.barrier()  # a rank that left first would end the other's last exchange
        print(f"{what.__name__}\n", end="", flush=True)  # in one piece: ranks share the pipe
    exit_process(0)

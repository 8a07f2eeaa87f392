"""One rank of a decoder whose weights are gathered in fp8 and in bf16: `gathering_ranks.py FILE`.

Rank 0 writes the bytes that a forward pass gathers in each, and the number of converted weights.
"""

import json
import sys
from pathlib import Path

import torch
from torch import distributed
from torch.utils._python_dispatch import TorchDispatchMode

from neobert.config import from_dict
from neobert.families.backbone import build_backbone
from neobert.families.table import model_shape
from neobert.objectives.tokens import TokenObjective
from neobert.parallel import World
from neobert.plan.sharding import gathers_copies
from neobert.precision.libraries import enabled_conversion
from neobert.precision.library import list_linear_layers
from neobert.probes.attention_suite import SpecialTokenIds
from neobert.train import exit_process

MODEL = {
    "type": "hf", "architecture": "llama", "hidden_size": 64, "num_hidden_layers": 2,
    "num_attention_heads": 4, "intermediate_size": 128,
}  # fmt: skip
SECTION = {
    "enable": True,
    "recipe": "float8_tensorwise",
    "enable_fsdp_float8_all_gather": True,
    "precompute_float8_dynamic_scale_for_fsdp": True,
}


class Gathered(TorchDispatchMode):
    """Sum of the bytes that all-gathers return."""

    num_bytes = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if "allgather" in function.name():
            self.num_bytes += args[0].nbytes
        return function(*args, **(kwargs or {}))


def gathered(section):
    config = from_dict(
        {"task": "causal", "model": MODEL, "torchao": section, "distributed": {"mode": "fsdp2"}}
        | {"trainer": {"mixed_precision": "bf16"}}
    )
    torch.manual_seed(0)
    world, shape = World.from_config(config), model_shape(config, 128)
    with world.defer_weights() as weights:
        backbone = build_backbone(config, SpecialTokenIds(), 128, world, "AutoModelForCausalLM", {})
    world.recipe.convert(backbone)
    module = world.prepare(
        TokenObjective(backbone, targets_only=True),
        reshards=True,
        gathers_copies=gathers_copies(world.recipe, shape),
        weights=weights,
    )
    ids = torch.arange(1, 33, device=world.device)[None]
    rows = {"input_ids": ids, "position_ids": ids - 1, "attention_mask": torch.ones_like(ids)}
    world.recipe.after_update(module)
    with Gathered() as counter, torch.no_grad(), world.autocast():
        loss = module(num_targets=32, labels=ids, **rows)
    conversion = enabled_conversion(config)
    layers = conversion.select_layers([*list_linear_layers(shape)]) if conversion else []
    return counter.num_bytes, sum(each.inputs * each.outputs for each in layers), loss.item()


if __name__ == "__main__":
    torch.set_num_threads(1)
    low, converted, low_loss = gathered(SECTION)
    bf16, _, loss = gathered({})
    if distributed.get_rank() == 0:
        found = {"low": low, "bf16": bf16, "converted": converted, "losses": [low_loss, loss]}
        Path(sys.argv[1]).write_text(json.dumps(found))
    distributed.barrier()
    exit_process(0)

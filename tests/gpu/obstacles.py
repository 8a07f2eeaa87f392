"""Why kernels cannot run on this machine's GPU, for marks that skip."""

import torch

from neobert.config import from_dict
from neobert.kernel_table import ATTENTION
from neobert.objectives.step_kernels import block_attention_error, block_error


def fused_obstacle() -> str:
    """Return why the fused blocks cannot run a model of 768 columns; empty where they can."""
    shape = {"hidden_size": 768, "num_attention_heads": 12, "intermediate_size": 3072}
    return str(block_error("fused", from_dict({"model": shape}), "cuda", torch.bfloat16) or "")


def flash4_obstacle() -> str:
    """Return why FlashAttention 4 cannot run in the blocks; empty where it can."""
    return str(block_attention_error(ATTENTION["flash_attn_4"]) or "")

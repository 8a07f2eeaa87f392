"""What a config must say for this project's own kernels to run its blocks; the rest is the machine's."""

from __future__ import annotations

from neobert.config.schema import ModelConfig, RunConfig

OWN_KERNELS = ("fused", "triton")
"""Values of `model.kernel_backend`, the fastest first; the others leave the blocks to the model's modules."""

HEAD_SIZE = 64


def obstacle_to_own_kernels(config: RunConfig) -> str:
    """Say which key asks for what these kernels do not do; empty where none does."""
    model = config.model
    wanted = (
        ("model.attn_backend", model.attn_backend, "auto"),
        ("datacollator.pack_sequences", config.datacollator.pack_sequences, True),
        ("trainer.masked_logits_only_loss", config.trainer.masked_logits_only_loss, True),
        ("trainer.gradient_checkpointing", config.trainer.gradient_checkpointing, False),
        ("model.rope", model.rope, True),
        ("model.rms_norm", model.rms_norm, True),
        ("model.hidden_act", model.hidden_act, "swiglu"),
    )
    for key, value, needed in wanted:
        if value != needed:
            return f"it needs {key}: {_yaml(needed)}, and this is {_yaml(value)}"
    return _obstacle_in_heads(model)


def _obstacle_in_heads(model: ModelConfig) -> str:
    size = model.hidden_size / model.num_attention_heads
    return "" if size == HEAD_SIZE else f"it is written for heads of {HEAD_SIZE}, and these are {size:g}"


def _yaml(value: object) -> str:
    return str(value).lower()

"""The modules of a model with native sparse attention, by fla's names of settings and weights. Imports torch.

`NSAForCausalLM` of flash-linear-attention loads its checkpoints; importing this module registers the classes
below for the same `model_type`.

B rows of S tokens, T packed tokens, D hidden size, N query heads, K heads of keys and values, H channels of a
head, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    GenerationMixin,
    PretrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput, CausalLMOutput

from neobert.families.nsa.attention import build_row_attend
from neobert.families.nsa.reference import Attend
from neobert.families.nsa.spec import GATES, INITIAL_STD, attention_spec
from neobert.model.attention import enter_layer
from neobert.model.layers import RMSNorm

if TYPE_CHECKING:
    from neobert.config.schema import NsaModelConfig


class NSAConfig(PretrainedConfig):
    """Settings by fla's names; the others do not affect fla's model."""

    model_type = "nsa"

    def __init__(
        self,
        hidden_size: int = 768,
        num_hidden_layers: int = 12,
        num_heads: int = 16,
        num_kv_heads: int = 1,
        head_dim: int = 64,
        intermediate_size: int = 2048,
        block_size: int = 64,
        block_counts: int = 16,
        window_size: int = 512,
        vocab_size: int = 32_000,
        max_position_embeddings: int = 2048,
        rope_theta: float = 10_000.0,
        norm_eps: float = 1e-6,
        initializer_range: float = INITIAL_STD,
        tie_word_embeddings: bool = False,
        **more: Any,
    ) -> None:
        self.hidden_size, self.num_hidden_layers = hidden_size, num_hidden_layers
        self.num_heads, self.num_kv_heads, self.head_dim = num_heads, num_kv_heads, head_dim
        self.intermediate_size, self.vocab_size = intermediate_size, vocab_size
        self.block_size, self.block_counts, self.window_size = block_size, block_counts, window_size
        self.max_position_embeddings, self.rope_theta = max_position_embeddings, rope_theta
        self.norm_eps, self.initializer_range = norm_eps, initializer_range
        super().__init__(tie_word_embeddings=tie_word_embeddings, **more)


class Rotation(NamedTuple):
    """Positions [T] of tokens in their document, and the table of all blocks for them, fp32 [T, 1, H / 2]."""

    positions: Tensor
    cos: Tensor
    sin: Tensor


def compute_rotation(positions: Tensor, head_dim: int, theta: float) -> Rotation:
    """Return the tables that rotate heads of `head_dim` channels by positions [T], with the base `theta`."""
    half = head_dim // 2
    # always fp32: in bf16 positions above 256 are no longer distinct.
    exponents = torch.arange(half, device=positions.device, dtype=torch.float32) / half
    angles = positions.to(torch.float32)[:, None, None] * theta**-exponents
    return Rotation(positions, angles.cos(), angles.sin())


def rotate_halves(x: Tensor, rotation: Rotation) -> Tensor:
    """Rotate the halves of the channels of x [T, N, H] in fp32, and cast back."""
    _, cos, sin = rotation
    first, second = x.to(torch.float32).chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, first * sin + second * cos], -1).to(x.dtype)


class LastCall(NamedTuple):
    """Gates [T, N, 3], selected blocks [T, K, B] and positions [T] of the last call, for telemetry."""

    gates: Tensor
    blocks: Tensor
    positions: Tensor


class NativeSparseAttention(nn.Module):
    """Projections, rotation and gates around an `Attend`."""

    def __init__(self, config: NSAConfig) -> None:
        super().__init__()
        hidden, queries = config.hidden_size, config.num_heads * config.head_dim
        keys = config.num_kv_heads * config.head_dim
        self.head_dim = config.head_dim
        self.q_proj = nn.Linear(hidden, queries, bias=False)
        self.k_proj = nn.Linear(hidden, keys, bias=False)
        self.v_proj = nn.Linear(hidden, keys, bias=False)
        self.g_proj = nn.Linear(hidden, GATES * config.num_heads, bias=False)
        self.o_proj = nn.Linear(queries, hidden, bias=False)
        self.last: LastCall | None = None

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Return the attention output [T, D] of x [T, D]; `attend` combines the rotated heads."""
        q, k, v = (
            project(x).unflatten(-1, (-1, self.head_dim))
            for project in (self.q_proj, self.k_proj, self.v_proj)
        )
        gates = self.gates(x)
        found = attend(rotate_halves(q, rotation), rotate_halves(k, rotation), v, gates)
        self.last = LastCall(gates.detach(), found.blocks, rotation.positions)
        out: Tensor = self.o_proj(found.context.flatten(1))
        return out

    def gates(self, x: Tensor) -> Tensor:
        """Return the gates [T, N, 3] of x [T, D], between 0 and 1 and independent of each other."""
        return self.g_proj(x).unflatten(-1, (-1, GATES)).sigmoid()


class GatedFeedForward(nn.Module):
    """SwiGLU (arXiv:2002.05202)."""

    def __init__(self, config: NSAConfig) -> None:
        super().__init__()
        hidden, width = config.hidden_size, config.intermediate_size
        self.gate_proj = nn.Linear(hidden, width, bias=False)
        self.up_proj = nn.Linear(hidden, width, bias=False)
        self.down_proj = nn.Linear(width, hidden, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Apply SwiGLU to x [T, D]."""
        out: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return out


class NSABlock(GradientCheckpointingLayer):
    """Pre-norm block of attention and feed-forward."""

    def __init__(self, config: NSAConfig, number: int) -> None:
        super().__init__()
        self.number = number
        self.attn_norm = RMSNorm(config.hidden_size, config.norm_eps, "torch")
        self.attn = NativeSparseAttention(config)
        self.mlp_norm = RMSNorm(config.hidden_size, config.norm_eps, "torch")
        self.mlp = GatedFeedForward(config)

    def forward(self, x: Tensor, rotation: Rotation, attend: Attend) -> Tensor:
        """Apply the block, attention and feed-forward, to x [T, D]."""
        enter_layer(self.number)
        x = x + self.attn(self.attn_norm(x), rotation, attend)
        out: Tensor = x + self.mlp(self.mlp_norm(x))
        return out


class NSAPreTrainedModel(PreTrainedModel):
    """Base class: initialization and recomputation."""

    config_class = NSAConfig
    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules: ClassVar[list[str]] = ["NSABlock"]

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Linear | nn.Embedding):
            nn.init.normal_(module.weight, std=self.config.initializer_range)
        elif isinstance(module, RMSNorm):
            nn.init.ones_(module.weight)


class NSAModel(NSAPreTrainedModel):
    """Embedding, blocks and the last norm."""

    def __init__(self, config: NSAConfig) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList(NSABlock(config, number) for number in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.norm_eps, "torch")
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.embeddings

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor | None = None,
        attend: Attend | None = None,
        attention_mask: Tensor | None = None,
        **_: Any,
    ) -> BaseModelOutput:
        """Return the final hidden states: [T, D] for packed tokens with positions and an `attend`.

        Without `attend`: [B, S, D] of rows [B, S]. Raises `ValueError` for rows with tokens after padding.
        """
        if attend is not None:
            assert position_ids is not None
            return BaseModelOutput(last_hidden_state=self._forward_packed(input_ids, position_ids, attend))
        rows, length = input_ids.shape
        # A generated token after padding would be one of these, too.
        if attention_mask is not None and bool((attention_mask[:, 1:] > attention_mask[:, :-1]).any()):
            raise ValueError(
                "a row has tokens after padding: pad on the right, and generate for one text at a time"
            )
        positions = torch.arange(length, device=input_ids.device).repeat(rows)
        sizes = cast("NsaModelConfig", self.config)  # of the same names
        attend = build_row_attend(attention_spec(sizes), rows, length, input_ids.device, self.dtype)
        states = self._forward_packed(input_ids.flatten(), positions, attend)
        return BaseModelOutput(last_hidden_state=states.unflatten(0, (rows, length)))

    def _forward_packed(self, input_ids: Tensor, positions: Tensor, attend: Attend) -> Tensor:
        x = self.embeddings(input_ids)
        # In fp32 the residual stream would cost memory and time in every block.
        if torch.is_autocast_enabled(x.device.type):
            x = x.to(torch.get_autocast_dtype(x.device.type))
        rotation = compute_rotation(positions, self.config.head_dim, self.config.rope_theta)
        for block in self.layers:
            x = block(x, rotation, attend)
        out: Tensor = self.norm(x)
        return out


class NSAForCausalLM(NSAPreTrainedModel, GenerationMixin):
    """The model with its head over the vocabulary. It generates without a cache."""

    _tied_weights_keys: ClassVar[dict[str, str]] = {"lm_head.weight": "model.embeddings.weight"}

    def __init__(self, config: NSAConfig) -> None:
        super().__init__(config)
        self.model = NSAModel(config)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def get_input_embeddings(self) -> nn.Module:
        """Return the token embedding."""
        return self.model.embeddings

    def get_output_embeddings(self) -> nn.Module:
        """Return the head."""
        return self.lm_head

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any) -> CausalLMOutput:
        """Return the logits [B, S, V] of rows [B, S], which are padded on the right, if at all."""
        states = self.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        return CausalLMOutput(logits=self.lm_head(states))

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, attention_mask: Tensor | None = None, **_: Any
    ) -> dict[str, Tensor | None]:
        """Return the whole text and its mask, which may be None: nothing is cached."""
        return {"input_ids": input_ids, "attention_mask": attention_mask}


for _auto, _class in ((AutoModel, NSAModel), (AutoModelForCausalLM, NSAForCausalLM)):
    _auto.register(NSAConfig, _class, exist_ok=True)
AutoConfig.register(NSAConfig.model_type, NSAConfig, exist_ok=True)

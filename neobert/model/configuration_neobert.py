"""Configuration of a NeoBERT, as in `config.json`. Copied into every checkpoint folder."""

from __future__ import annotations

import inspect
import shutil
from pathlib import Path
from typing import Any

from transformers import PretrainedConfig

from .kernel_table import ATTENTION, ATTENTION_CHOICES, BLOCKS, AttentionKernel

ATTENTION_BACKENDS = tuple(
    dict.fromkeys(
        [*ATTENTION_CHOICES, *(each.name for each in ATTENTION.values() if each.loader and not each.family)]
    )
)
KERNEL_BACKENDS = tuple(name for name, kernel in reversed(BLOCKS.items()) if not kernel.replaces_blocks)
ACTIVATIONS = ("swiglu", "gelu")
POOLINGS = ("avg", "cls", "max")
INITS = ("published", "scaled")
DEFAULT_ROPE_THETA = 10_000.0
AUTO_MAP = {
    "AutoConfig": "configuration_neobert.NeoBERTConfig",
    "AutoModel": "modeling_neobert.NeoBERT",
    "AutoModelForMaskedLM": "modeling_neobert.NeoBERTLMHead",
    "AutoModelForSequenceClassification": "modeling_neobert.NeoBERTForSequenceClassification",
    "AutoModelForTokenClassification": "modeling_neobert.NeoBERTForTokenClassification",
    "AutoModelForQuestionAnswering": "modeling_neobert.NeoBERTForQuestionAnswering",
    "AutoModelForMultipleChoice": "modeling_neobert.NeoBERTForMultipleChoice",
}
"""Classes of the copied code that transformers' auto classes load."""


class NeoBERTConfig(PretrainedConfig):
    """Configuration of a NeoBERT encoder.

    The names match the published checkpoint; its `max_length` is read as `max_position_embeddings`.
    Raises `ValueError` for an invalid shape or an unknown choice.
    """

    model_type = "neobert"

    def __init__(
        self,
        vocab_size: int = 30522,
        hidden_size: int = 768,
        num_hidden_layers: int = 28,
        num_attention_heads: int = 12,
        intermediate_size: int = 3072,
        max_position_embeddings: int | None = None,
        pad_token_id: int | None = 0,
        rope: bool = True,
        rope_theta: float = DEFAULT_ROPE_THETA,
        rms_norm: bool = True,
        norm_eps: float = 1e-5,
        hidden_act: str = "swiglu",
        hidden_dropout_prob: float = 0.0,
        tie_word_embeddings: bool = False,
        embedding_multiplier: float = 1.0,
        init: str = "published",
        embedding_init_range: float = 0.02,
        decoder_init_range: float = 0.02,
        classifier_init_range: float = 0.02,
        classifier_dropout: float = 0.1,
        pooling: str = "cls",
        attn_backend: str = "auto",
        kernel_backend: str = "torch",
        dim_head: int | None = None,
        **kwargs: Any,
    ) -> None:
        # The published file says max_length, which newer transformers take for a generation setting.
        published_length = kwargs.pop("max_length", None)
        for scaling in ("rope_scaling", "rope_parameters"):
            if kwargs.get(scaling):
                raise ValueError(f"{scaling} is not supported: remove {scaling}, and set rope_theta")
        self.vocab_size = vocab_size
        self.hidden_size = hidden_size
        self.num_hidden_layers = num_hidden_layers
        self.num_attention_heads = num_attention_heads
        self.intermediate_size = intermediate_size
        self.max_position_embeddings = max_position_embeddings or published_length or 1024
        self.rope = rope
        self.rope_theta = rope_theta
        self.rms_norm = rms_norm
        self.norm_eps = norm_eps
        self.hidden_act = _check_choice("hidden_act", hidden_act.lower(), ACTIVATIONS)
        self.hidden_dropout_prob = hidden_dropout_prob
        self.embedding_multiplier = embedding_multiplier
        self.init = _check_choice("init", init, INITS)
        self.embedding_init_range = embedding_init_range
        self.decoder_init_range = decoder_init_range
        self.classifier_init_range = classifier_init_range
        self.classifier_dropout = classifier_dropout
        self.pooling = _check_choice("pooling", pooling, POOLINGS)
        self.attn_backend = _check_choice("attn_backend", attn_backend, ATTENTION_BACKENDS)
        self.kernel_backend = _check_choice("kernel_backend", kernel_backend, KERNEL_BACKENDS)
        self.dim_head = _head_dim(hidden_size, num_attention_heads, rope, dim_head)
        super().__init__(**kwargs)
        self.pad_token_id = pad_token_id
        self.tie_word_embeddings = tie_word_embeddings

    @classmethod
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Build like transformers, but raise `ValueError` if `kwargs` change the trained `rope_theta`.

        Every load of a checkpoint calls this, with the caller's overrides as `kwargs`.
        """
        trained = config_dict.get("rope_theta", DEFAULT_ROPE_THETA)
        requested = kwargs.get("rope_theta", trained)
        if requested != trained:
            raise ValueError(
                f"rope_theta {requested:g} differs from the {trained:g} that the weights were trained with: "
                "to train them on longer rows, load the config, set config.rope_theta and "
                "config.max_position_embeddings, and load the model with config=config"
            )
        return super().from_dict(config_dict, **kwargs)

    def save_pretrained(self, save_directory: Any, *args: Any, **kwargs: Any) -> None:
        """Save like transformers, and copy the source file of the kernel table, which may be this one."""
        super().save_pretrained(save_directory, *args, **kwargs)
        table = inspect.getfile(AttentionKernel)
        if table != __file__:
            shutil.copyfile(table, Path(save_directory) / "kernel_table.py")

    @property
    def ffn_width(self) -> int:
        """Feed-forward width: intermediate_size for GELU, two thirds of it for SwiGLU.

        SwiGLU has three matrices instead of two. Its width is rounded up to a multiple of 8.
        """
        if self.hidden_act == "gelu":
            return int(self.intermediate_size)
        return 8 * -(-(2 * int(self.intermediate_size) // 3) // 8)


def _check_choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise ValueError(f"{name} is {value!r}, expected one of {', '.join(choices)}")
    return value


def _head_dim(hidden_size: int, num_heads: int, rope: bool, declared: int | None) -> int:
    """Return the channels of one head: hidden_size / num_heads.

    Raises ValueError for a remainder, another `declared` number, or an odd number with `rope`.
    """
    head_dim, rest = divmod(hidden_size, num_heads)
    if rest:
        raise ValueError(f"num_attention_heads ({num_heads}) does not divide hidden_size ({hidden_size})")
    if rope and head_dim % 2:
        raise ValueError(f"rotary position embeddings need an even head size, not {head_dim}")
    if declared is not None and declared != head_dim:
        raise ValueError(f"dim_head is {declared}, but hidden_size / num_attention_heads is {head_dim}")
    return head_dim

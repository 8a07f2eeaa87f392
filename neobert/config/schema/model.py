"""Schema of the section `model`, one dataclass per family."""

# ruff: noqa: RUF009  (key() and section() build fields, which is what belongs in a class body)

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from neobert.kernel_table import ATTENTION_CHOICES, BLOCK_CHOICES
from neobert.schema_fields import (
    Beta,
    ConfigSection,
    NonEmpty,
    NumBlocks,
    PositiveFloat,
    PositiveInt,
    SequenceLength,
    key,
)

if TYPE_CHECKING:  # mypy cannot evaluate a Literal of the table's names
    AttentionChoice = str
    BlockChoice = str
else:
    AttentionChoice = Literal[ATTENTION_CHOICES]
    BlockChoice = Literal[BLOCK_CHOICES]
Architecture = Literal[
    "bert",
    "modernbert",
    "roberta",
    "xlm-roberta",
    "camembert",
    "distilbert",
    "electra",
    "eurobert",
    "mpnet",
    "deberta-v2",
    "llama",
    "qwen2",
    "qwen3",
    "mistral",
    "gemma",
    "gemma2",
    "gemma3_text",
    "smollm3",
    "phi3",
    "olmo2",
    "granite",
    "gpt_neox",
    "gpt2",
    "starcoder2",
    "cohere",
    "glm4",
    "opt",
]


def weights_field(description: str) -> Any:
    """Declare the key of the initial weights, which `revision` pins."""
    pinned = {"is_path": True, "pinned_by": "revision", "replaces": ("revision",)}
    return key(None, description, affects="numerics", **pinned)


def weights_commit_field() -> Any:
    """Declare the key `revision`."""
    return key(
        None,
        "Commit of the Hub repository that pretrained_checkpoint names as OWNER/NAME; null: "
        "pretrained_checkpoint is a local path.",
        affects="numerics",
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class ModelConfig(ConfigSection):
    """The encoder: pre-norm, rotary positions, RMSNorm and SwiGLU (NeoBERT, arXiv:2502.19587)."""

    type: Literal["neobert"] = key(
        "neobert",
        "Model family: neobert, hf for a transformers model, or nsa for native sparse attention.",
    )
    hidden_size: PositiveInt = key(768, "Width of the residual stream.")
    num_hidden_layers: NumBlocks = key(28, "Number of encoder blocks.")
    num_attention_heads: PositiveInt = key(12, "Number of attention heads; must divide hidden_size.")
    intermediate_size: PositiveInt = key(
        3072, "Nominal feed-forward width; SwiGLU uses two thirds of it, rounded up to a multiple of 8."
    )
    vocab_size: PositiveInt | None = key(
        None, "Vocabulary size of the embedding; null: the tokenizer's size rounded up to a multiple of 128."
    )
    max_position_embeddings: SequenceLength | None = key(
        None,
        "Maximum sequence length of the model in tokens; null: dataset.max_seq_length, or the "
        "maximum of pretrained_checkpoint if that is longer.",
    )
    rope: bool = key(True, "Rotary position embeddings (RoPE); false: learned absolute positions.")
    rope_theta: PositiveFloat = key(10_000.0, "Base of the RoPE frequencies.")
    rms_norm: bool = key(True, "RMSNorm; false: LayerNorm (ablation).")
    norm_eps: PositiveFloat = key(1e-5, "Epsilon of the normalization layers.")
    hidden_act: Literal["swiglu", "gelu"] = key("swiglu", "Feed-forward activation.")
    dropout: Beta = key(
        0.0,
        "Dropout of the outputs of attention and feed-forward in training. Above 0, the blocks "
        "run as torch modules, which are slower; unsupervised contrastive training needs dropout.",
        affects="numerics",
    )
    tie_word_embeddings: bool = key(
        False, "Share the input embedding with the output layer, which then has no bias."
    )
    embedding_multiplier: PositiveFloat | None = key(
        1.0,
        "Factor on the token embeddings before the first block, 1 in the published model; null: the factor "
        "of pretrained_checkpoint, else sqrt(hidden_size), with which small tied embeddings outweigh the "
        "first blocks' outputs.",
    )
    init: Literal["published", "scaled"] = key(
        "published",
        "Distribution of the initial weights. published: uniform, in the two init ranges "
        "(NeoBERT). scaled: normal, standard deviation 0.02, truncated at three standard "
        "deviations, and divided by sqrt(2 num_hidden_layers) in the outputs of attention and "
        "feed-forward (GPT-2).",
        affects="numerics",
    )
    embedding_init_range: PositiveFloat = key(
        0.02, "With init published: embeddings are initialized uniformly in [-range, range]."
    )
    decoder_init_range: PositiveFloat = key(
        0.02, "With init published: linear layers are initialized uniformly in [-range, range]."
    )
    attn_backend: AttentionChoice = key(
        "auto",
        "Attention kernel; auto: the fastest one supported on the device. A named kernel is never replaced. "
        "flash_attn_varlen: the newest supported FlashAttention (4, 3 or 2) that is installed; flex: torch's "
        "flex_attention with a document mask; triton_packed: this project's kernel for short texts, heads "
        "of 64 and bf16.",
        affects="machine",
    )
    kernel_backend: BlockChoice = key(
        "auto",
        "Kernels of the encoder blocks. auto: fused (quack-kernels, Hopper) or triton for packed bf16 "
        "training on CUDA with attn_backend auto; otherwise liger if installed, else torch.",
        affects="machine",
    )
    pretrained_checkpoint: str | None = weights_field(
        "Checkpoint folder to initialize the weights from, or, if `revision` is set, a model repository "
        "on the Hugging Face Hub (OWNER/NAME); null: random weights. Optimizer and schedule are not restored."
    )
    revision: str | None = weights_commit_field()


SIZES = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "intermediate_size",
    "vocab_size",
    "max_position_embeddings",
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class HfModelConfig(ConfigSection):
    """A transformers model, an encoder or a causal decoder, from a config.json or by architecture.

    Null keys default to the value of the config.json, or else to the transformers default.
    """

    type: Literal["hf"] = key("hf", "Model family: a transformers model.")
    config: NonEmpty | None = key(
        None,
        "A transformers config.json, or a folder that contains one; null: the config.json of "
        "pretrained_checkpoint, else the defaults of architecture.",
        is_path=True,
        replaces=(*SIZES, "architecture"),
    )
    architecture: Architecture | None = key(
        None,
        "Architecture, with the transformers default sizes; null: the one in config.json.",
        replaces=(*SIZES, "config"),
    )
    hidden_size: PositiveInt | None = key(None, "Width of the residual stream.")
    num_hidden_layers: NumBlocks | None = key(None, "Number of blocks.")
    num_attention_heads: PositiveInt | None = key(None, "Number of attention heads.")
    num_key_value_heads: PositiveInt | None = key(
        None,
        "Number of key-value heads; must divide num_attention_heads. Null: the value in config.json, else "
        "the architecture's default; if num_attention_heads is not the architecture's default, equal to "
        "num_attention_heads.",
    )
    intermediate_size: PositiveInt | None = key(None, "Feed-forward width.")
    vocab_size: PositiveInt | None = key(
        None,
        "Vocabulary size; null: the size in pretrained_checkpoint, else the tokenizer's size rounded "
        "up to a multiple of 128.",
    )
    max_position_embeddings: SequenceLength | None = key(
        None,
        "Maximum sequence length of the model in tokens; null: the value in config.json, else "
        "dataset.max_seq_length.",
    )
    dropout: Beta | None = key(
        None,
        "Dropout probability for embeddings and for attention and feed-forward outputs (for ModernBERT, "
        "inside the feed-forward); null: the value in config.json (0.1 for BERT).",
    )
    attention_dropout: Beta | None = key(
        None,
        "Dropout of attention probabilities in training; null: the value in config.json (0.1 for BERT). "
        "Above 0, attention over packed documents runs once per document, with SDPA.",
    )
    attention: Literal["sdpa", "eager"] = key(
        "sdpa",
        "Attention implementation of transformers; eager materializes all attention scores.",
        affects="machine",
    )
    pretrained_checkpoint: str | None = weights_field(
        "Transformers folder (config.json and safetensors) to initialize the weights from, or, if `revision` "
        "is set, a model repository on the Hugging Face Hub (OWNER/NAME); null: random weights."
    )
    revision: str | None = weights_commit_field()


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class NsaModelConfig(ConfigSection):
    """A causal model with native sparse attention (arXiv:2502.11089), as in flash-linear-attention."""

    type: Literal["nsa"] = key("nsa", "Model family: a causal model with native sparse attention.")
    hidden_size: PositiveInt = key(768, "Width of the residual stream.")
    num_hidden_layers: NumBlocks = key(12, "Number of blocks.")
    num_heads: PositiveInt = key(
        16, "Number of query heads: num_kv_heads times a power of two that is at least 16."
    )
    num_kv_heads: PositiveInt = key(1, "Number of key-value heads; each selects its own blocks.")
    head_dim: PositiveInt = key(64, "Channels of a head; even, and at most 256.")
    intermediate_size: PositiveInt = key(2048, "Feed-forward width.")
    block_size: PositiveInt = key(
        64, "Tokens of a block that is compressed and selected; a power of two, at least 2 * block_counts."
    )
    block_counts: PositiveInt = key(
        16,
        "Blocks that a token selects, including the first one, its own and the one before; a "
        "power of two, at least 4.",
    )
    window_size: PositiveInt = key(512, "Tokens of the sliding window, the token itself included.")
    vocab_size: PositiveInt | None = key(
        None, "Vocabulary size of the embedding; null: the tokenizer's size rounded up to a multiple of 128."
    )
    max_position_embeddings: SequenceLength | None = key(
        None, "Maximum sequence length of the model in tokens; null: dataset.max_seq_length."
    )
    rope_theta: PositiveFloat = key(10_000.0, "Base of the RoPE frequencies.")
    norm_eps: PositiveFloat = key(1e-6, "Epsilon of the normalization layers.")
    tie_word_embeddings: bool = key(True, "Share the input embedding with the output layer.")
    pretrained_checkpoint: str | None = weights_field(
        "Checkpoint folder to initialize the weights from, or, if `revision` is set, a model repository "
        "on the Hugging Face Hub (OWNER/NAME); null: random weights."
    )
    revision: str | None = weights_commit_field()

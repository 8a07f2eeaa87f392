"""Shape and limits of a model with native sparse attention. Imports no torch.

L blocks, D hidden, F feed-forward width, V vocabulary, N query heads, K heads of keys and values,
H channels of a head.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from neobert.config.schema import NsaModelConfig, RunConfig
from neobert.families.attention import AttentionSpec, SelectedBlocks, Window
from neobert.families.family import Family, UnsupportedKey
from neobert.families.hf.architecture import CAUSAL, attention_layers
from neobert.families.linear import Linear
from neobert.families.shape import ModelShape, ParameterCount, StoredActivations
from neobert.runfiles.run_dir import CONFIG
from neobert.tasks.specs import spec_of, text_task

INITIAL_STD = 0.02
LEAST_GROUP, LARGEST_HEAD, LEAST_BLOCKS = 16, 256, 4
PROJECTIONS = ("attn.q_proj", "attn.k_proj", "attn.v_proj", "attn.o_proj")
GATES = 3
"""Gates of a head: of the compressed, the selected and the sliding branch."""


def model_section(config: RunConfig) -> NsaModelConfig:
    """Return the section `model` of a run with this model family; other families fail an assertion."""
    assert isinstance(config.model, NsaModelConfig), "config of another model family"
    return config.model


def attention_spec(model: NsaModelConfig) -> AttentionSpec:
    """Return the attention of every block."""
    return AttentionSpec(
        heads=model.num_heads,
        kv_heads=model.num_kv_heads,
        head_size=model.head_dim,
        direction="causal",
        selected=SelectedBlocks(model.block_size, model.block_counts, model.window_size),
    )


def sliding_branch(spec: AttentionSpec) -> AttentionSpec:
    """Return the attention of the sliding branch: causal, within the window."""
    assert spec.selected is not None
    return replace(spec, selected=None, window=Window((0,), spec.selected.window - 1))


def read_shape(model: NsaModelConfig, vocab_size: int, max_row_length: int) -> ModelShape:
    """Return the shape of the model that the section describes, for rows of up to `max_row_length` tokens."""
    hidden, layers, linear = model.hidden_size, model.num_hidden_layers, linear_layers(model)
    return ModelShape(
        architecture="nsa",
        hidden_size=hidden,
        num_layers=layers,
        attention_width=model.num_heads * model.head_dim,
        feed_forward_width=model.intermediate_size,
        vocab_size=vocab_size,
        attention=attention_spec(model),
        positions="rotary",
        max_positions=model.max_position_embeddings or max_row_length,
        rope_theta=model.rope_theta,
        linear_layers=linear,
        parameters=ParameterCount(
            linear=layers * sum(each.inputs * each.outputs for each in linear.values()),
            vectors=(2 * layers + 1) * hidden,
            embeddings=vocab_size * hidden,
            decoder=0 if model.tie_word_embeddings else vocab_size * hidden,
        ),
        decoder_products=vocab_size * hidden,
        initial_rms=INITIAL_STD,
        kept={"eager": _stored_activations(model)},
        has_fp32_stream=False,
    )


def linear_layers(model: NsaModelConfig) -> Mapping[str, Linear]:
    """Return the linear layers of a block by their name in it."""
    hidden, width = model.hidden_size, model.intermediate_size
    attention = attention_layers(PROJECTIONS, hidden, model.num_heads, model.num_kv_heads, model.head_dim)
    inner = Linear(hidden, width)
    return attention | {
        "attn.g_proj": Linear(hidden, GATES * model.num_heads),
        "mlp.gate_proj": inner,
        "mlp.up_proj": inner,
        "mlp.down_proj": Linear(width, hidden),
    }


def _stored_activations(model: NsaModelConfig) -> StoredActivations:
    """Return the activations that one block stores for the backward pass, with operators that keep no scores.

    Of width N * H: queries, the outputs of three branches, and their sum. Of width K * H: keys and values.
    """
    queries, keys = model.num_heads * model.head_dim, model.num_kv_heads * model.head_dim
    hidden, width = model.hidden_size, model.intermediate_size
    gates = GATES * model.num_heads
    values = 2 * hidden + 4 * width + 5 * queries + 2 * keys + gates
    fp32_values = 4 * hidden + gates + model.block_counts
    reason = (
        "a block keeps the inputs of its matrix products and norms, and the outputs of three branches; the "
        "reference on a CPU also keeps scores"
    )
    return StoredActivations(values, fp32_values, reason)


def unsupported_keys(config: RunConfig) -> Iterator[UnsupportedKey]:
    """Yield the keys that this family does not support, or whose values its kernels do not take."""
    yield from _unsupported_sizes(model_section(config))
    task, trainer = spec_of(config), config.trainer
    if task.auto_class != CAUSAL:
        problem, fitting = f"task {task.name} needs a head that this family lacks", text_task(is_causal=True)
        yield UnsupportedKey("task", problem, f"set task to {fitting.name}")
    if not config.datacollator.pack_sequences:
        key = "datacollator.pack_sequences"
        yield UnsupportedKey(key, "native sparse attention needs packed rows", f"set {key} to true")
    for key, is_set in (
        ("trainer.torch_compile", trainer.torch_compile),
        ("trainer.cuda_graphs", trainer.cuda_graphs),
    ):
        if is_set:
            problem = (
                "the selection of blocks reads document bounds on the host, so it cannot be part of a graph"
            )
            yield UnsupportedKey(key, problem, f"set {key} to false")


def _unsupported_sizes(model: NsaModelConfig) -> Iterator[UnsupportedKey]:
    heads, kv_heads = model.num_heads, model.num_kv_heads
    group, rest = divmod(heads, kv_heads)
    if rest or group < LEAST_GROUP or not _is_power_of_two(group):
        least = f"a power of two of at least {LEAST_GROUP}"
        problem = f"num_heads {heads} is not num_kv_heads {kv_heads} times {least}"
        yield UnsupportedKey("model.num_heads", problem, f"set model.num_heads to {kv_heads * LEAST_GROUP}")
    if model.head_dim % 2 or model.head_dim > LARGEST_HEAD:
        problem = f"head_dim {model.head_dim} is not an even number up to {LARGEST_HEAD}"
        yield UnsupportedKey("model.head_dim", problem, "set model.head_dim to 64")
    counts, size = model.block_counts, model.block_size
    if counts < LEAST_BLOCKS or not _is_power_of_two(counts):
        # Three blocks are always selected; the kernels round other numbers up, silently.
        problem = f"block_counts {counts} is not a power of two of at least {LEAST_BLOCKS}"
        nearest = max(LEAST_BLOCKS, 1 << (counts.bit_length() - 1))
        yield UnsupportedKey("model.block_counts", problem, f"set model.block_counts to {nearest}")
    elif size < 2 * counts or not _is_power_of_two(size):
        problem = f"block_size {size} is not a power of two of at least 2 * block_counts ({2 * counts})"
        yield UnsupportedKey("model.block_size", problem, f"set model.block_size to {2 * counts}")


def _is_power_of_two(number: int) -> bool:
    return number & (number - 1) == 0


def trained_positions(folder: Path) -> int:
    """Return the maximum sequence length that the config.json of a folder states, or 0 if it states none.

    Raises `ProjectError` if the file is missing or not JSON.
    """
    from neobert.runfiles.model_folder import read_json  # checkpoints, which `lint` seldom reads

    stated = read_json(folder / CONFIG).get("max_position_embeddings")
    return stated if isinstance(stated, int) else 0


NSA = Family(
    name="nsa",
    module="neobert.families.nsa.build",
    read_shape=read_shape,
    requested_rows=lambda section: section.vocab_size,
    requested_kernels=lambda _section: ("torch", "nsa"),
    kernel_key="model.type",
    kernel_hint="report a bug with the versions of flash-linear-attention and triton",
    attention_key="model.type",
    attention_reason="the model has native sparse attention",
    attention_hint="train another model",
    modules="this project's modules of native sparse attention",
    with_kernels=lambda section, _blocks: section,
    unsupported=unsupported_keys,
    trained_positions=trained_positions,
    is_causal=True,
    model_class="fla.models.NSAForCausalLM",
)

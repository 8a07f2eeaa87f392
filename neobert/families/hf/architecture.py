"""Description of a transformers architecture, as data. Imports no torch.

One file under `architectures/` describes one architecture, or the generations of one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from neobert.families.hf.settings import Settings
from neobert.families.linear import PROJECTION, Layout, Linear
from neobert.families.shape import ModelShape, StoredActivations

BARE, MASKED, CAUSAL, TEXTS, TOKENS = (
    "AutoModel",
    "AutoModelForMaskedLM",
    "AutoModelForCausalLM",
    "AutoModelForSequenceClassification",
    "AutoModelForTokenClassification",
)
VOCABULARY_HEADS = (MASKED, CAUSAL)
"""Heads over the vocabulary, which a checkpoint must have."""
KEPT_REASON = "a block keeps the inputs of its matrix products, norms and activation"


class HeadPath(NamedTuple):
    """Layers of a head, by their names in the model.

    Attributes:
        linear: the last layer.
        steps: what runs before it, in order: the name of a module; `dropout`, with the probability that the
            task sets; an activation, as `=tanh`, or as `=name` of the setting that names it; or `*name` or
            `/name`: multiply or divide by the setting.
        softcap: setting of a soft cap on the logits; empty if there is none.
    """

    linear: str
    steps: tuple[str, ...] = ()
    softcap: str = ""


class Padding(NamedTuple):
    """Positions that begin after the id of the padding token.

    Attributes:
        token_id: the padding token's id, by default.
        is_fixed: the id is part of the code of the model, and not a setting.
    """

    token_id: int
    is_fixed: bool = False


class Architecture(NamedTuple):
    """A transformers architecture.

    Attributes:
        shape: returns the shape for settings, embedding rows and the longest sequence. Raises `ProjectError`
            MOD006 for an invalid or unsupported setting.
        prefix: name prefix of the encoder's weights in a model with a head.
        blocks: name of the list of blocks in the encoder.
        embedding: name of the token embedding in the encoder.
        positions: name of the position embedding in the encoder; empty if it has none.
        added_norms: norms of a block whose output, of the type of their weights, is added to the stream.
        heads: heads by the auto class of the model.
        attention_dropout: setting of attention dropout, and its default.
        dropout: setting of the dropout of the outputs of blocks, and its default; None: they have none.
        embedding_dropout: setting of embedding dropout; empty if the setting of `dropout` sets it too.
        poolings: poolings of the classifier of texts, by this project's names, with transformers' value of
            `classifier_pooling`, which is empty if there is one pooling only; empty without a classifier.
        names: settings of the architecture by the names of other architectures' settings.
        file_names: beginnings of names of weights in files, with those in the model.
        padding: set if positions begin after the id of the padding token.
        packs: attention goes through transformers' `AttentionInterface`.
        has_sdpa: transformers has SDPA for padded rows of this architecture.
        recomputes: blocks support gradient checkpointing.
        compiles_padded: torch.compile makes few graphs for padded rows.
        without_masked_head: which checkpoints lack the masked-language-model head, for hints.
    """

    shape: Callable[[Settings, int, int], ModelShape]
    prefix: str
    blocks: str
    embedding: str
    heads: Mapping[str, HeadPath]
    attention_dropout: tuple[str, float]
    dropout: tuple[str, float] | None = None
    embedding_dropout: str = ""
    positions: str = ""
    added_norms: tuple[str, ...] = ()
    poolings: Mapping[str, str] = {"cls": ""}
    names: Mapping[str, str] = {}
    file_names: Mapping[str, str] = {}
    padding: Padding | None = None
    packs: bool = True
    has_sdpa: bool = True
    recomputes: bool = True
    compiles_padded: bool = True
    without_masked_head: str = ""

    def name_in_model(self, name: str) -> str:
        """Convert the name of a weight in a file to its name in the model."""
        for old, new in self.file_names.items():
            if name.startswith(old):
                return new + name.removeprefix(old)
        return name

    def setting_name(self, key: str) -> str:
        """Convert the common name of a setting to its name in this architecture."""
        return self.names.get(key, key)

    def first_position(self, settings: Settings) -> int:
        """Return the index in the position embedding that the first token uses."""
        if self.padding is None:
            return 0
        default = self.padding.token_id
        return 1 + (default if self.padding.is_fixed else settings.size("pad_token_id", default, least=0))


def head_parts(prefix: str, head: HeadPath) -> tuple[str, ...]:
    """Return the names of the modules with a head's weights: parts of the model, or of the encoder."""
    modules = [name for name in (*head.steps, head.linear) if name != "dropout" and name[0] not in "=*/"]
    lengths = (1 + name.startswith(prefix) for name in modules)
    parts = (name.split(".")[:length] for name, length in zip(modules, lengths, strict=True))
    return tuple(dict.fromkeys(map(".".join, parts)))


def attention_layers(
    names: tuple[str, str, str, str], hidden: int, heads: int, kv_heads: int, head_size: int
) -> dict[str, Linear]:
    """Return the linear layers of a block's attention: of queries, keys, values, and the output."""
    query, key, value, output = names
    key_value = Linear(hidden, kv_heads * head_size, Layout(PROJECTION, kv_heads))
    return {
        query: Linear(hidden, heads * head_size, Layout(PROJECTION, heads)),
        key: key_value,
        value: key_value,
        output: Linear(heads * head_size, hidden),
    }


def measured_activations(
    settings: Settings, heads: int, num_values: int, num_fp32_values: int
) -> dict[str, StoredActivations]:
    """Return the activations that one block stores for the backward pass, measured on transformers' modules.

    SDPA stores its mask, one number per token that is attended to. Eager attention stores the probabilities
    of every head, in fp32 from the softmax and in the compute type for the product.

    Args:
        num_values, num_fp32_values: numbers per token that are stored in the compute type and in fp32.
    """
    num_fp32_values += 4 + heads  # statistics of norms and softmax
    if settings.is_eager:
        return {
            "eager": StoredActivations(
                num_values, num_fp32_values, KEPT_REASON, scores=heads, fp32_scores=heads
            )
        }
    return {"eager": StoredActivations(num_values, num_fp32_values, KEPT_REASON, scores=1)}

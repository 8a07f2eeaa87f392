"""Attention probes for a model of any family without a run, the same as in a rehearsal."""

from __future__ import annotations

import math
from typing import Any, NamedTuple, cast

import torch

from neobert.config import replace
from neobert.config.schedules import masking_rates
from neobert.config.schema import RunConfig
from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.windows import Cursor
from neobert.data.tokenize.tokenizers import TokenizerBundle
from neobert.families.backbone import build_backbone
from neobert.families.shape import ModelShape
from neobert.families.table import max_row_length, model_shape
from neobert.objectives import token_objective_for
from neobert.objectives.compile import compile_objective
from neobert.parallel import World
from neobert.plan.vocabulary import num_embedding_rows
from neobert.probes.attention import attention_answers, attention_reach, draw_weights
from neobert.probes.layout import Layout, with_edge_lengths
from neobert.probes.probed_model import probed_model
from neobert.probes.sparse import sparse_answers_for_model
from neobert.tasks.rank_data import objective_inputs

MAX_TOKENS = 8192
FIRST_ID = 8
MIN_MEAN_LENGTH = 8
"""Minimum mean length of a document in tokens, which limits the number of documents in a packed row."""


class SpecialTokenIds(NamedTuple):
    """Special token ids, the only tokenizer data that building a model needs."""

    pad_id: int = 0

    def role_ids(self) -> dict[str, int | None]:
        """Return the ids of special tokens, by their names in a model's config."""
        others = {"cls": 1, "sep": 2, "bos": 1, "eos": 2, "mask": 3}
        return {f"{role}_token_id": number for role, number in {"pad": self.pad_id, **others}.items()}


def probe_attention(config: RunConfig) -> dict[str, Any]:
    """Build the model of a config with random weights, and probe it on random text; return JSON values.

    Raises `ProjectError` if the model cannot be built.
    """
    world, vocab_size = World.from_config(config), num_embedding_rows(config)
    shape = model_shape(config, vocab_size)
    if config.distributed.mode == "fsdp2":  # all blocks may not fit on one device
        config = replace(config, "model.num_hidden_layers", min_layers_with_all_kinds(shape))
        shape = model_shape(config, vocab_size)
    tokenizer = cast(TokenizerBundle, SpecialTokenIds(max(0, shape.first_position - 1)))
    head = "AutoModelForCausalLM" if shape.attention.is_causal else "AutoModelForMaskedLM"
    backbone = build_backbone(config, tokenizer, vocab_size, world, head, {})
    world.recipe.convert(backbone)
    rates = masking_rates(config.datacollator)
    objective = token_objective_for(config, backbone, world.device.type, rates, targets_only=True)
    compile_objective(config, objective)
    objective.to(world.device).eval()
    spec = shape.attention
    batch = with_edge_lengths(random_full_microbatch(config, vocab_size), attention_reach(spec))
    with torch.no_grad(), world.autocast():
        loss = objective(**objective_inputs(batch, world.device)) / batch.num_targets
    draw_weights(backbone.model, shape.embedding_multiplier)
    model = probed_model(backbone, objective, world, objective_inputs, spec)
    found = [
        *attention_answers(model, batch),
        *sparse_answers_for_model(backbone, objective, world, batch, spec),
    ]
    answers = [answer._asdict() for answer in found]
    is_on_gpu = world.is_on_gpu
    return {
        "device": torch.cuda.get_device_name() if is_on_gpu else "cpu",
        "torch": torch.__version__,
        "is_full": False,
        "dtype": str(world.compute_dtype).removeprefix("torch."),
        "vocab_size": vocab_size,
        "num_tokens": batch.num_tokens,
        "segment_lengths": [len(tokens) for tokens in Layout.from_microbatch(batch).documents()],
        "uniform_loss": math.log(vocab_size),
        "paths": [],
        "initial_loss": float(loss),
        "unavailable": {},
        "attention": backbone.attention,
        "answers": answers,
    }


def min_layers_with_all_kinds(shape: ModelShape) -> int:
    """Return the number of first blocks (at least 2) that include every kind of attention of the model."""
    kinds = [shape.attention.for_layer(number) for number in range(shape.num_layers)]
    return min(len(kinds), max(2, *(kinds.index(each) + 1 for each in kinds)))


def random_full_microbatch(config: RunConfig, vocab_size: int) -> Microbatch:
    """Return a random microbatch in the run's layout, without padding; at most `MAX_TOKENS` or one row."""
    longest = max_row_length(config)
    rows = max(1, min(config.trainer.per_device_train_batch_size, MAX_TOKENS // longest))
    draw = torch.Generator().manual_seed(config.seed)
    ids, labels = (torch.randint(FIRST_ID, vocab_size, (rows, longest), generator=draw) for _ in range(2))
    positions = torch.arange(longest).expand(rows, longest).contiguous()
    is_packed, total = config.datacollator.pack_sequences, rows * longest
    slots = total // MIN_MEAN_LENGTH + rows
    bounds = torch.full((slots + 1,), total, dtype=torch.int32)
    bounds[: rows + 1] = torch.arange(rows + 1) * longest
    return Microbatch(
        input_ids=ids.flatten() if is_packed else ids,
        labels=labels.flatten() if is_packed else labels,
        position_ids=positions.flatten() if is_packed else positions,
        cu_seqlens=bounds if is_packed else None,
        attention_mask=None if is_packed else torch.ones_like(ids, dtype=torch.bool),
        max_seqlen=longest,
        num_tokens=total,
        num_targets=total,
        num_segments=rows,
        sample_ids=torch.arange(rows),
        groups=torch.arange(slots if is_packed else rows),
        cursor=Cursor(),
    )

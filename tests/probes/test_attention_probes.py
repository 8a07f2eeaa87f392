"""Probes of attention on a small model of any spec: a sound one passes, each planted fault is seen."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor, nn

from neobert.data.batches.microbatch import Microbatch
from neobert.data.batches.windows import Cursor
from neobert.families.attention import AttentionSpec, Window
from neobert.families.packed_attention import packed_attention
from neobert.kernels.plain_attention import plain_attention
from neobert.kernels.reference import rotate
from neobert.model import NeoBERTConfig, NeoBERTLMHead
from neobert.probes.attention import Probed, attention_answers, draw_weights
from neobert.probes.layout import Layout, edge_lengths, with_edges, with_other_tokens
from neobert.probes.probed_model import embedded_in

VOCAB_SIZE, WIDTH, LONGEST, REACH = 97, 32, 160, 8
SPEC = AttentionSpec(heads=4, kv_heads=4, head_size=8)
GROUPED = replace(SPEC, kv_heads=2, direction="causal", scale=0.5)
WINDOWED = replace(SPEC, window=Window((0,), REACH))


class Toy(nn.Module):
    """Two pre-norm blocks of attention and a feed-forward, with learned or rotary positions."""

    def __init__(self, spec: AttentionSpec, positions: str) -> None:
        super().__init__()
        self.spec, self.positions = spec, positions
        self.embed, self.place = nn.Embedding(VOCAB_SIZE, WIDTH), nn.Embedding(4 * LONGEST, WIDTH)
        rows = (spec.heads + 2 * spec.kv_heads) * spec.head_size
        self.qkv = nn.ModuleList(nn.Linear(WIDTH, rows) for _ in range(2))
        self.wo = nn.ModuleList(nn.Linear(spec.heads * spec.head_size, WIDTH) for _ in range(2))
        self.ffn = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(2))
        self.norm = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(5))
        draw_weights(self)

    def forward(self, ids: Tensor, positions: Tensor, attend: Callable[..., Tensor]) -> Tensor:
        spec, x = self.spec, self.embed(ids)
        if self.positions == "learned":
            x = x + self.place(positions)
        for number in range(2):
            qkv = self.qkv[number](self.norm[2 * number](x)).unflatten(-1, (-1, spec.head_size))
            q, k, v = qkv.split([spec.heads, spec.kv_heads, spec.kv_heads], dim=-2)
            if self.positions == "rotary":
                q, k = rotate(q, positions, 10_000.0), rotate(k, positions, 10_000.0)
            x = x + self.wo[number](attend(number, q, k.to(q.dtype), v.to(q.dtype)).flatten(-2))
            x = x + self.ffn[number](self.norm[2 * number + 1](x)).relu()
        return self.norm[4](x)


@dataclass
class Faults:
    """What a planted fault changes on the way of a packed row; the formula stays as it is."""

    bounds: Callable[[Tensor], Tensor] = lambda bounds: bounds
    positions: Callable[[Tensor], Tensor] = lambda positions: positions
    heads: Callable[[Tensor], Tensor] = lambda values: values
    spec: Callable[[AttentionSpec], AttentionSpec] = lambda spec: spec


def probed(spec: AttentionSpec, positions: str, faults: Faults, dtype: torch.dtype) -> Probed:
    model = Toy(spec, positions).eval()

    def hidden(batch: Microbatch) -> Tensor:
        bounds, total = faults.bounds(batch.cu_seqlens), batch.input_ids.numel()
        longest, ran = int(bounds.diff().max()), faults.spec(spec)

        def attend(number: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
            k, v = faults.heads(k), faults.heads(v)
            own = replace(ran, kv_heads=k.shape[1]).of_layer(number)
            return packed_attention("sdpa", bounds, longest, total, own)(q, k, v)

        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            return model(batch.input_ids, faults.positions(batch.position_ids), attend)

    def plain(ids: Tensor) -> Tensor:
        return model(
            ids, torch.arange(len(ids)), lambda n, q, k, v: plain_attention(q, k, v, spec.of_layer(n))
        )

    def rounded(ids: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype, enabled=dtype != torch.float32):
            return plain(ids)

    return Probed(
        hidden=hidden,
        plain=plain,
        rounded=rounded,
        positions=lambda batch: faults.positions(batch.position_ids),
        spec=spec,
    )


def full_row(tokens: int = 4 * LONGEST, slots: int = 24) -> Microbatch:
    ids = torch.randint(3, VOCAB_SIZE, (tokens,), generator=torch.Generator().manual_seed(0))
    bounds = torch.full((slots + 1,), tokens, dtype=torch.int32)
    bounds[0] = 0
    return Microbatch(
        input_ids=ids,
        labels=ids.clone(),
        position_ids=torch.arange(tokens),
        cu_seqlens=bounds,
        attention_mask=None,
        max_seqlen=LONGEST,
        num_tokens=tokens,
        num_targets=tokens,
        num_segments=1,
        sample_ids=torch.arange(1),
        groups=torch.arange(slots),
        cursor=Cursor(),
    )


@torch.no_grad()
def answers(spec, positions="rotary", faults=None, dtype=torch.float32, row=None):
    given = attention_answers(probed(spec, positions, faults or Faults(), dtype), row or full_row())
    return {answer.kind: answer.value for answer in given}


def missed(found: dict[str, float]) -> set[str]:
    """Kinds whose value is over the limit that the rule has."""
    limits = {"isolation": 0, "causal": 0, "equality": 2.0, "positions": 0}
    return {
        kind
        for kind, value in found.items()
        if not (value == 1 if kind == "bidirectional" else value <= limits[kind])
    }


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("positions", ["rotary", "learned"])
@pytest.mark.parametrize("spec", [SPEC, GROUPED, WINDOWED, replace(WINDOWED, direction="causal")], ids=str)
def test_a_sound_model_passes_every_probe(spec, positions, dtype):
    found = answers(spec, positions, dtype=dtype)
    assert found.keys() == {"isolation", spec.direction, "equality", "positions"}
    assert missed(found) == set()


def merged(bounds: Tensor) -> Tensor:
    return torch.cat([bounds[:2], bounds[3:], bounds[-1:]])


def running_on(positions: Tensor) -> Tensor:
    return torch.arange(len(positions))


def in_wrong_order(values: Tensor) -> Tensor:
    """Repeat heads of keys and values as 0 1 0 1 where query heads read 0 0 1 1."""
    return values.repeat(1, 2, 1)


def wider(spec: AttentionSpec, by: int) -> AttentionSpec:
    return replace(spec, window=Window(spec.window.layers, spec.window.reach + by))


FAULTS = [
    ("merged bounds", SPEC, "rotary", Faults(bounds=merged), {"isolation", "equality"}),
    ("merged bounds", GROUPED, "rotary", Faults(bounds=merged), {"isolation", "equality"}),
    ("positions run on", SPEC, "learned", Faults(positions=running_on), {"equality", "positions"}),
    ("positions run on", SPEC, "rotary", Faults(positions=running_on), {"positions"}),
    ("window one too wide", WINDOWED, "rotary", Faults(spec=lambda spec: wider(spec, 1)), {"equality"}),
    ("window one too narrow", WINDOWED, "rotary", Faults(spec=lambda spec: wider(spec, -1)), {"equality"}),
    (
        "later tokens visible",
        GROUPED,
        "rotary",
        Faults(spec=lambda spec: replace(spec, direction="bidirectional")),
        {"causal", "equality"},
    ),
    (
        "later tokens hidden",
        SPEC,
        "rotary",
        Faults(spec=lambda spec: replace(spec, direction="causal")),
        {"bidirectional", "equality"},
    ),
    ("heads in wrong order", GROUPED, "rotary", Faults(heads=in_wrong_order), {"equality"}),
    (
        "wrong scale",
        GROUPED,
        "rotary",
        Faults(spec=lambda spec: replace(spec, scale=None)),
        {"equality"},
    ),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("spec", "positions", "faults", "kinds"),
    [pytest.param(*rest, id=f"{name}, {rest[0].direction}, {rest[1]}") for name, *rest in FAULTS],
)
def test_a_fault_is_seen_by_its_probes_and_no_other(spec, positions, faults, kinds, dtype):
    assert missed(answers(spec, positions, faults, dtype)) == kinds


def test_one_document_says_nothing_of_isolation():
    assert answers(SPEC, row=full_row(LONGEST, 1)).keys() == {"bidirectional", "equality", "positions"}


def test_edges_fill_a_row_and_fit_its_slots():
    for total, slots, longest, reach in (
        (640, 24, 160, 8),
        (160, 1, 160, 8),
        (64, 4, 16, 3),
        (320, 2, 160, 8),
    ):
        lengths = edge_lengths(total, slots, longest, reach)
        assert sum(lengths) == total
        assert len(lengths) <= slots
        assert max(lengths) <= longest
    assert edge_lengths(640, 24, 160, 8)[:3] == [10, 1, 2]


def test_every_token_that_is_to_change_changes():
    batch = with_edges(full_row(), REACH)
    layout = Layout.of(batch)
    changed = with_other_tokens(batch, layout.document == 0)
    assert torch.equal(changed.input_ids != batch.input_ids, layout.document == 0)
    assert [len(tokens) for tokens in layout.documents()] == batch.cu_seqlens.diff()[
        : batch.num_segments
    ].tolist()


def test_multiplied_embeddings_are_at_unit_scale_and_in_the_dtype_of_the_stream():
    config = NeoBERTConfig(
        vocab_size=VOCAB_SIZE, hidden_size=64, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=96, embedding_multiplier=22.6,
    )  # fmt: skip
    model = NeoBERTLMHead(config)
    draw_weights(model, 22.6)
    embeddings = model.get_input_embeddings()
    assert float(22.6 * embeddings.weight.detach().std()) == pytest.approx(1.0, rel=0.05)
    ids = torch.arange(4)
    with embedded_in(torch.bfloat16, model):
        assert embeddings(ids).dtype == torch.bfloat16
    with embedded_in(None, model):
        assert embeddings(ids).dtype == torch.float32

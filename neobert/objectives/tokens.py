"""Cross-entropy of tokens: masked words, or any tokens that a task labels.

Shapes: B rows, S row length, T packed tokens, M targets, D hidden size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import repeat
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from neobert.data.batches.targets import IGNORED
from neobert.families.backbone import Backbone
from neobert.kernels.vocabulary import embedding, linear_cross_entropy
from neobert.model.attention import record_kernels
from neobert.objectives.objective import ModuleWork, Objective, compile_static, num_decoder_rows
from neobert.plan.memory import rows_per_chunk
from neobert.tasks.metric import RANGES

LAST = 2**31 - 1
"""End of the last range of `RANGES`, above every position."""


class Score(NamedTuple):
    """Loss in nats and number of correct predictions, both summed over the targets of a microbatch.

    Attributes:
        by_position: fp64 [2, R], sum of the losses and number of targets in each of `RANGES`; None: rows are
            not longer than the first range.
    """

    loss_sum: Tensor
    num_correct: Tensor
    by_position: Tensor | None = None


class TokenObjective(Objective):
    """Cross-entropy summed over the targets of a model with a head over tokens, in fp32.

    With `targets_only` the head runs only on the M targets, else on every token, which gives the
    same loss at a higher cost.

    With a capacity the head gets that many rows in every microbatch, filled up with unlabelled rows, so
    shapes are static and the objective can be compiled. `eval_capacity` is the capacity in evaluations.

    With `z_loss`, each target adds z_loss times the squared logsumexp of its logits, in training only.

    `by_position`: evaluations also return the loss by position in the document.

    `stream_dtype`: dtype of the residual stream between blocks; None: autocast decides.
    """

    stream_dtype: torch.dtype | None = None
    by_position: bool = False

    def __init__(
        self,
        backbone: Backbone,
        targets_only: bool,
        capacity: int | None = None,
        eval_capacity: int | None = None,
        z_loss: float = 0.0,
    ) -> None:
        super().__init__()
        assert backbone.head is not None
        self.backbone, self.head = backbone, backbone.head
        self.model = backbone.model
        self.z_loss = z_loss
        self.targets_only = targets_only
        self.capacity = capacity
        self.eval_capacity = eval_capacity or capacity
        self.attention_used = {}
        self._loss: Callable[..., Tensor] = self._summed_loss
        self._scored: Callable[..., Score] = self._score
        self._decode = ModuleWork(self.head.linear, self._decoded_loss)
        self._score_targets = ModuleWork(self.head.linear, self._decoded_score)
        self._is_lookup_compiled = False

    def compile_loss(self, backend: str, *, cuda_graphs: bool = False) -> None:
        """Compile the training loss and the evaluation as one graph each. Requires a capacity."""
        self._is_lookup_compiled = True
        self._compile_step(backend, cuda_graphs=cuda_graphs)
        self._scored = compile_static(self._score, backend)

    def record_cuda_graphs(self) -> None:
        """Record forward and backward of the training loss as CUDA graphs, without generated kernels.

        Requires a capacity. Evaluations launch their kernels one by one.
        """
        self._compile_step("cudagraphs", cuda_graphs=True)

    def _compile_step(self, backend: str, *, cuda_graphs: bool) -> None:
        self.has_cuda_graphs = cuda_graphs
        self._loss = compile_static(self._summed_loss, backend, cuda_graphs=cuda_graphs)

    def compile_parts(self, backend: str) -> None:
        """Compile each block and the loss separately, so that gradients of a block are available early.

        Requires a capacity.
        """
        for block in self.backbone.blocks:
            block.forward = compile_static(block.forward, backend)
        self._decode.compile(backend)

    def units(self) -> list[nn.Module]:
        """Return the modules that FSDP2 shards as units (see `World.prepare`)."""
        return self.backbone.units

    def module_work(self) -> list[ModuleWork]:
        """Return the computations that use a module's parameters outside its forward (see `ModuleWork`)."""
        return [self._decode, self._score_targets]

    def forward(self, num_targets: int, labels: Tensor, **inputs: Any) -> Tensor:
        """Return the summed loss of a microbatch in fp32; without targets, a zero that supports backward.

        Args:
            num_targets: number of labels that are not -100, counted on the host to avoid a device sync.
            labels: int64 [T] or [B, S], -100 where nothing is predicted. A label outside the vocabulary
                raises `IndexError` on a CPU; on a GPU, call `check_labels` before.
            inputs: arguments of the encoder, packed or padded.
        """
        num_rows = num_decoder_rows(num_targets, self.capacity, labels.numel())
        with record_kernels(self.attention_used):
            return self._loss(num_rows, labels, inputs)

    @torch.no_grad()
    def evaluate(self, num_targets: int, labels: Tensor, **inputs: Any) -> Score:
        """Return the `Score` of a microbatch, without gradients and z-loss. Arguments as for `forward`."""
        return self._scored(num_decoder_rows(num_targets, self.eval_capacity, labels.numel()), labels, inputs)

    def _score(self, num_rows: int, labels: Tensor, inputs: dict[str, Any]) -> Score:
        positions = inputs["position_ids"].flatten()[:, None] if self.by_position else None
        return self._score_targets(self.encode(inputs), labels, num_rows, positions)

    def _decoded_score(
        self, hidden: Tensor, labels: Tensor, num_rows: int, positions: Tensor | None = None
    ) -> Score:
        if positions is not None:
            positions, _ = self._select_decoded_rows(positions, labels, num_rows)
        hidden, labels = self._select_decoded_rows(hidden, labels, num_rows)
        # Without gradients a chunk's logits are freed once they are scored; few logits are one chunk.
        rows = rows_per_chunk(len(hidden), self.head.linear.out_features)
        places = repeat(None) if positions is None else positions.split(rows)
        first, *others = zip(hidden.split(rows), labels.split(rows), places, strict=False)
        score = self._score_rows(*first)
        for chunk in others:
            score = _add_scores(score, self._score_rows(*chunk))
        return score

    def _score_rows(self, hidden: Tensor, labels: Tensor, positions: Tensor | None) -> Score:
        logits = self.logits(hidden)
        by_position = None if positions is None else losses_by_position(logits, labels, positions)
        return Score(summed_loss(logits, labels), (logits.argmax(-1) == labels).sum(), by_position)

    def _summed_loss(self, num_rows: int, labels: Tensor, inputs: dict[str, Any]) -> Tensor:
        return self._decode(self.encode(inputs), labels, num_rows)

    def _decoded_loss(self, hidden: Tensor, labels: Tensor, num_rows: int) -> Tensor:
        hidden, labels = self._select_decoded_rows(hidden, labels, num_rows)
        if rows_per_chunk(len(hidden), self.head.linear.out_features) >= len(hidden):
            return summed_loss(self.logits(hidden), labels, self.z_loss)
        # Inside the operator autocast does not apply: the products take the type that hidden comes in.
        states = self.head.transform(hidden)
        states = states.to(_product_dtype(states))
        linear, softcap = self.head.linear, self.head.softcap
        return linear_cross_entropy(
            states, linear.weight, linear.bias, labels, z_loss=self.z_loss, softcap=softcap
        )

    def _select_decoded_rows(self, hidden: Tensor, labels: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
        """Return hidden states and labels of `num_rows` rows with the targets, or of all tokens."""
        labels = labels.flatten()
        if not self.targets_only or num_rows == len(labels):
            return hidden, labels
        return gather_targets(hidden, labels, num_rows)

    def encode(self, inputs: dict[str, Any]) -> Tensor:
        """Return the hidden states that `logits` takes, [T, D] or [B * S, D].

        `inputs`: arguments of the encoder.
        """
        if self._is_lookup_compiled:
            inputs = inputs | {"input_ids": None, "inputs_embeds": self.embed_tokens(inputs["input_ids"])}
        return self.backbone.hidden(inputs)

    def embed_tokens(self, input_ids: Tensor) -> Tensor:
        """Return the embeddings [..., D] of token ids [...], with a deterministic gradient."""
        table = self.model.get_input_embeddings()
        embedded = embedding(input_ids, table.weight, table.padding_idx)
        factor = getattr(table, "scalar_embed_scale", 1.0)  # of Gemma's module
        return embedded if factor == 1.0 else embedded * factor

    def logits(self, hidden: Tensor) -> Tensor:
        """Return the logits [M, V] of rows [M, D] of the output of `encode`."""
        return self.decode(self.final_states(hidden))

    def final_states(self, hidden: Tensor) -> Tensor:
        """Return the model's last hidden states for rows [M, D] of the output of `encode`."""
        return hidden

    def decode(self, states: Tensor) -> Tensor:
        """Return the logits [M, V] of the model's last hidden states [M, D]."""
        return self.head(states)


def _product_dtype(hidden: Tensor) -> torch.dtype:
    device = hidden.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else hidden.dtype


def gather_targets(hidden: Tensor, labels: Tensor, num_rows: int) -> tuple[Tensor, Tensor]:
    """Select the rows with a label: from [T, D] and [T] to [M, D] and [M], with M = num_rows <= T.

    If there are fewer than M targets, the remaining rows are arbitrary and have the label -100.
    """
    places = torch.nonzero_static(labels != IGNORED, size=num_rows).squeeze(1)
    is_target = places >= 0
    # Fillers are distinct rows: the gradients of many copies of one row would be added one after another.
    places = torch.where(is_target, places, torch.arange(num_rows, device=places.device))
    picked = torch.where(is_target, labels.index_select(0, places), IGNORED)
    return hidden.index_select(0, places), picked


def losses_by_position(logits: Tensor, labels: Tensor, positions: Tensor) -> Tensor:
    """Return the summed loss and the number of targets in each of `RANGES`, fp64 [2, R].

    logits [M, V], labels [M], -100 where nothing is predicted, and positions [M, 1] in documents.
    """
    losses = F.cross_entropy(logits.to(torch.float32), labels, ignore_index=IGNORED, reduction="none")
    starts = torch.tensor(RANGES, device=positions.device)
    is_in = (positions >= starts) & (positions < torch.cat([starts[1:], starts.new_tensor([LAST])]))
    # A product with 0 and 1 has one order of summation; adding to an index has none on a GPU.
    weights = (is_in & (labels != IGNORED)[:, None]).to(torch.float64)
    return torch.stack([(losses.to(torch.float64)[:, None] * weights).sum(0), weights.sum(0)])


def _add_scores(first: Score, more: Score) -> Score:
    by_position = None
    if first.by_position is not None and more.by_position is not None:
        by_position = first.by_position + more.by_position
    return Score(first.loss_sum + more.loss_sum, first.num_correct + more.num_correct, by_position)


def summed_loss(logits: Tensor, labels: Tensor, z_loss: float = 0.0) -> Tensor:
    """Sum the cross-entropy of logits [M, V] over the labels [M] that are not -100, in fp32.

    Adds z_loss times the squared logsumexp of the logits for each of these labels.
    """
    # Many logits take `linear_cross_entropy` instead. torch's own chunked function took 1.3 to 60 times as
    # long as this on two cores (torch 2.13, M 400 to 1600, V 4096 to 16384).
    wide = logits.to(torch.float32)
    loss = F.cross_entropy(wide, labels, ignore_index=IGNORED, reduction="sum")
    if not z_loss:
        return loss
    return loss + z_loss * (wide.logsumexp(-1).square() * (labels != IGNORED)).sum()


def check_labels(labels: Tensor, vocab_size: int) -> None:
    """Raise `IndexError` if a label (a CPU tensor) is neither -100 nor in [0, vocab_size)."""
    is_legal = (labels == IGNORED) | ((labels >= 0) & (labels < vocab_size))
    if not bool(is_legal.all()):
        worst = labels[~is_legal][0].item()
        raise IndexError(f"label {worst} is outside the vocabulary of {vocab_size:,} tokens")

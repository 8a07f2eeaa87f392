"""Table of optimizers, for the schema, the plan and the rules. Imports no torch.

Each entry names the module of `neobert.optim` that builds it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

ADAM_KEYS = frozenset({"lr", "betas", "eps", "weight_decay"})
MUON_KEYS = frozenset(
    {"muon_lr", "muon_momentum", "muon_nesterov", "muon_ns_steps", "muon_adjust_lr_fn", "muon_split"}
)
CLIP_KEYS = frozenset({"qk_clip_threshold", "qk_clip_alpha", "qk_clip_interval", "qk_clip_chunk_size"})


class OptimizerKind(NamedTuple):
    """An entry of the table.

    Attributes:
        summary: text about this optimizer in the description of `optimizer.name`; empty for the default.
        module: module of `neobert.optim` with `build(config, model)`.
        keys: keys of the section `optimizer` that this optimizer reads.
        matrix_moments: fp32 optimizer state values per weight of the blocks' matrices.
        moments: fp32 optimizer state values per weight of the other parameters.
        decay: decoupled weight decay (as in AdamW), or l2: the decay is added to the gradient.
        lowest_rate: lowest recorded peak rate of pretraining: BERT's (arXiv:1810.04805).
        highest_rate_by_width: highest recorded product of peak rate and width: 1e-3 at 768
            (arXiv:2212.14034). The best rate falls as 1 / width (arXiv:2203.03466).
    """

    name: str
    summary: str
    module: str
    keys: frozenset[str]
    matrix_moments: int
    moments: int
    decay: Literal["decoupled", "l2"] = "decoupled"
    lowest_rate: float = 1e-4
    highest_rate_by_width: float = 0.77

    @property
    def updates_matrices_by_muon(self) -> bool:
        """Return whether Muon updates the matrices of the blocks, and AdamW the other parameters."""
        return self.keys >= MUON_KEYS

    @property
    def clips_logits(self) -> bool:
        """Return whether attention logits are clipped at a threshold (QK-Clip)."""
        return self.keys >= CLIP_KEYS


OPTIMIZERS = {
    kind.name: kind
    for kind in (
        OptimizerKind(name="adamw", summary="", module="adamw", keys=ADAM_KEYS, matrix_moments=2, moments=2),
        OptimizerKind(
            name="adam",
            summary="adam adds weight_decay to the gradient (L2)",
            module="adamw",
            keys=ADAM_KEYS,
            matrix_moments=2,
            moments=2,
            decay="l2",
        ),
        OptimizerKind(
            name="lion",
            summary="lion steps by the sign of the momentum, keeps one moment, and "
            "needs a third to a tenth of AdamW's rate and betas [0.9, 0.99]",
            module="lion",
            keys=ADAM_KEYS - {"eps"},
            matrix_moments=1,
            moments=1,
            lowest_rate=1e-5,  # a tenth and a third of AdamW's (arXiv:2302.06675)
            highest_rate_by_width=0.26,
        ),
        OptimizerKind(
            name="muon",
            summary="muon orthogonalizes the updates of the blocks' matrices",
            module="muon_groups",
            keys=ADAM_KEYS | MUON_KEYS,
            matrix_moments=1,
            moments=2,
        ),
        OptimizerKind(
            name="muonclip",
            summary="muonclip is muon with attention logits held below a threshold",
            module="muon_groups",
            keys=ADAM_KEYS | MUON_KEYS | CLIP_KEYS,
            matrix_moments=1,
            moments=2,
        ),
    )
}
OPTIMIZER_NAMES = tuple(OPTIMIZERS)
SUMMARIES = "; ".join(kind.summary for kind in OPTIMIZERS.values() if kind.summary)

"""Native sparse attention by flash-linear-attention's operators, on a GPU. Imports torch and fla.

fla's own sliding branch calls FlashAttention 2, which need not be installed: here, that branch runs one of
the attention kernels of `neobert.kernel_table`.

T packed tokens, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

import torch
from fla.ops.nsa import parallel
from fla.ops.nsa.compression import parallel_nsa_compression
from fla.ops.nsa.parallel import ParallelNSAFunction, parallel_nsa_topk
from fla.ops.utils.pooling import mean_pooling
from torch import Tensor

from neobert.families.attention import AttentionSpec
from neobert.families.nsa.reference import AttentionResult, combine
from neobert.families.nsa.spec import sliding_branch
from neobert.families.packed_attention import packed_attention

LONGEST = torch.tensor(2**30)
"""Upper bound of document lengths in tokens, on the host: `item()` does not wait for the device."""
# The backward pass has the blocks of the longest document as a constant. With its real length kernels are
# compiled again for every new one, for half a minute, and the host waits for the device in each layer.
# A bound gives the same gradients: blocks are counted in their own document.
parallel.prepare_lens = lambda _cu_seqlens: LONGEST


class Operators:
    """Attention within documents, with the bounds that all blocks share.

    Args:
        sliding: name of the kernel of the sliding branch.
    """

    def __init__(self, sliding: str, spec: AttentionSpec, cu_seqlens: Tensor, max_seqlen: int) -> None:
        assert spec.selected is not None
        self._sliding, self._spec, self._sparse = sliding, spec, spec.selected
        self._max_seqlen = max_seqlen
        # fla counts documents by their first tokens, so those without tokens must go. It caches what it
        # derives from this tensor: one for all blocks.
        self._bounds = torch.unique_consecutive(cu_seqlens)

    def __call__(self, q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> AttentionResult:
        """Attend with q [T, N, H], k and v [T, K, H], gates [T, N, 3]."""
        sparse, bounds, scale = self._sparse, self._bounds, q.shape[-1] ** -0.5
        row = [each[None] for each in (q, k, v)]
        means = [mean_pooling(each, sparse.size, bounds) for each in row[1:]]
        compressed, lse = parallel_nsa_compression(
            row[0], *means, TK=len(q), block_size=sparse.size, cu_seqlens=bounds
        )
        blocks = parallel_nsa_topk(
            row[0],
            means[0],
            TK=len(q),
            lse=lse,
            block_counts=sparse.counts,
            block_size=sparse.size,
            scale=scale,
            cu_seqlens=bounds,
        )
        # `parallel_nsa` would compute the means of keys and values again.
        selected = ParallelNSAFunction.apply(*row, blocks, sparse.counts, sparse.size, scale, bounds)
        attend = packed_attention(self._sliding, bounds, self._max_seqlen, len(q), sliding_branch(self._spec))
        branches = (compressed[0], selected[0], attend(q, k, v))
        return AttentionResult(combine(branches, gates.unbind(-1)), blocks[0], lse[0])

"""Native sparse attention by a kernel of the table: the reference on a CPU, fla's operators on a GPU.

T packed tokens, N query heads, K heads of keys and values, H channels of a head.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from neobert.errors import ProjectError
from neobert.families.attention import AttentionSpec
from neobert.families.nsa.reference import Attend, AttentionResult
from neobert.families.nsa.reference import attend as attend_by_reference
from neobert.families.nsa.spec import sliding_branch
from neobert.model.attention import record_kernel, record_kernels
from neobert.model.backends import BackendError, ChosenKernel, choose_backend, current_environment

FAMILY, REFERENCE = "nsa", "nsa_reference"


class SparseKernels(NamedTuple):
    """Kernels of the attention of a run.

    Attributes:
        sparse: kernel of the compressed and the selected branch.
        sliding: kernel of the sliding branch; empty for the reference, which computes all branches.
    """

    sparse: ChosenKernel
    sliding: str = ""


def choose_kernels(device_type: str, dtype: torch.dtype, spec: AttentionSpec) -> SparseKernels:
    """Choose the kernels for a device. Raises `ProjectError` ATT001 if they cannot run."""
    environment = current_environment(device_type, dtype, spec.head_size, spec.features)
    try:
        sparse = choose_backend(FAMILY, environment)
        if sparse.name == REFERENCE:
            return SparseKernels(sparse)
        window = environment._replace(features=sliding_branch(spec).features)
        return SparseKernels(sparse, choose_backend("auto", window).name)
    except BackendError as error:
        raise ProjectError("ATT001", error.message, error.hint, "model.type") from error


def build_attend(kernels: SparseKernels, spec: AttentionSpec, cu_seqlens: Tensor, max_seqlen: int) -> Attend:
    """Return the `attend` of every block within documents: q, k, v and gates to `AttentionResult`."""
    assert spec.selected is not None
    selected = spec.selected
    if kernels.sliding:
        from neobert.families.nsa.operators import Operators  # imports fla

        by_operators = Operators(kernels.sliding, spec, cu_seqlens, max_seqlen)

    def attend(q: Tensor, k: Tensor, v: Tensor, gates: Tensor) -> AttentionResult:
        if not kernels.sliding:
            record_kernel(kernels.sparse.name)
            return attend_by_reference(q, k, v, gates, cu_seqlens, max_seqlen, selected)
        ran = dict[int, str]()
        with record_kernels(ran):  # the sliding branch notes its own kernel
            found = by_operators(q, k, v, gates)
        others = [each for each in ran.values() if each != kernels.sliding]
        record_kernel(", sliding branch by ".join([kernels.sparse.name, *others]))
        return found

    return attend


def build_row_attend(
    spec: AttentionSpec, rows: int, length: int, device: torch.device, dtype: torch.dtype
) -> Attend:
    """Return an `attend` over rows of one text each. Raises `ProjectError` ATT001 if no kernel can run."""
    if torch.is_autocast_enabled(device.type):
        dtype = torch.get_autocast_dtype(device.type)
    bounds = torch.arange(rows + 1, device=device, dtype=torch.int32) * length
    return build_attend(choose_kernels(device.type, dtype, spec), spec, bounds, length)

"""Table of kernels, re-exported. A copy of `neobert/kernel_table.py` replaces this file in checkpoints."""

from neobert.kernel_table import (
    ATTENTION,
    ATTENTION_CHOICES,
    BLOCKS,
    AttentionKernel,
    Environment,
    Feature,
    Gpu,
    Kernel,
    Package,
    find_attention_kernels,
    install_line,
)

__all__ = [
    "ATTENTION",
    "ATTENTION_CHOICES",
    "BLOCKS",
    "AttentionKernel",
    "Environment",
    "Feature",
    "Gpu",
    "Kernel",
    "Package",
    "find_attention_kernels",
    "install_line",
]

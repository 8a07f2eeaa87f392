"""The table of kernels. In a checkpoint folder `neobert/kernel_table.py` itself is in this place."""

from neobert.kernel_table import (
    ATTENTION,
    ATTENTION_CHOICES,
    BLOCKS,
    AttentionKernel,
    Environment,
    Gpu,
    Kernel,
    attention_named,
    install_line,
)

__all__ = [
    "ATTENTION",
    "ATTENTION_CHOICES",
    "BLOCKS",
    "AttentionKernel",
    "Environment",
    "Gpu",
    "Kernel",
    "attention_named",
    "install_line",
]

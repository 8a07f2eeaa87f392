"""Table of kernels, re-exported. A copy of `neobert/kernel_table.py` replaces this file in checkpoints."""

from neobert.kernel_table import *  # noqa: F403

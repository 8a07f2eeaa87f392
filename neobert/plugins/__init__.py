"""Plug-ins: user-defined functions that a run file names. The interfaces need no torch."""

from neobert.plugins.interfaces import Dataset, Hook, HookFactory, Loss, Masking, MaskingContext, Metric

__all__ = ["Dataset", "Hook", "HookFactory", "Loss", "Masking", "MaskingContext", "Metric"]

"""NeoBERT encoders: configuration, training plan, model, data and trainer.

Importing this package does not import torch: only modules that run in child processes do.
"""

__version__ = "0.2.0"

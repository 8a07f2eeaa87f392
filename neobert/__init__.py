"""NeoBERT encoders: configuration, plan, model, data and trainer.

Importing this package imports nothing heavy: torch lives in the modules that
run in child processes, never above the process boundary.
"""

__version__ = "0.2.0"

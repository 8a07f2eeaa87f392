"""Tiny runs of each model family."""

from tests.training.conftest import corpus, exact, killed_run, make_run, run

__all__ = ["corpus", "exact", "killed_run", "make_run", "run"]

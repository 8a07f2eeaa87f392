"""Fixtures of tiny runs, shared with the tests of the loop."""

from tests.training.conftest import corpus, killed_run, make_run, metrics, run

__all__ = ["corpus", "killed_run", "make_run", "metrics", "run"]

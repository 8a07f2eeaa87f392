"""Fixtures of tiny runs, shared with the tests of the loop."""

from tests.training.conftest import corpus, exact, make_run, metrics, run

__all__ = ["corpus", "exact", "make_run", "metrics", "run"]

"""Fixtures and sections of tiny runs; the fixtures are shared with the tests of the loop."""

from tests.training.conftest import corpus, exact, killed_run, make_run, metrics, run

__all__ = ["corpus", "exact", "killed_run", "make_run", "metrics", "options_of", "run"]


def options_of(task, path, section=None, **more):
    """Configure a task on a file of examples."""
    data = {"path": str(path), "cache_dir": str(path.parent / "cache"), "eval_samples": 24}
    if task != "question_answering":  # which goes through a long text in windows
        data["long_documents"] = "truncate"
    return {
        "task": task,
        task: section or {},
        "dataset": data | more.pop("dataset", {}),
        "tokenizer": {"vocab_size": 128},
        **more,
    }

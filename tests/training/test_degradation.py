"""Counters that should stay flat: growth is logged, and growth that lasts ends a run with a checkpoint."""

from types import SimpleNamespace

import pytest

from neobert.config.schema import GuardConfig
from neobert.data.sources.retries import RetryingReader
from neobert.errors import ProjectError
from neobert.objectives import TokenObjective
from neobert.runfiles.checkpoint import folders
from neobert.training.guards.degradation import GROWN_LINES, WINDOW_LINES, DegradationWatch
from neobert.training.loop.signals import StopRequested
from neobert.training.state.train_state import TrainState

ALONE = SimpleNamespace(sum_over_ranks=list)


@pytest.fixture
def observe():
    """Show a watch one line of counters after another; return the trainer and the line that stopped it."""

    def run(lines, on_degradation="stop", world=ALONE):
        progress = SimpleNamespace(step=0)
        trainer = SimpleNamespace(
            config=SimpleNamespace(guard=GuardConfig(on_degradation=on_degradation)),
            task=SimpleNamespace(
                backbone=SimpleNamespace(attention="sdpa"),
                attention_used={0: "sdpa"},
                read_retries=lambda: trainer.state.read_retries,
            ),
            progress=progress,
            world=world,
            state=TrainState(progress=progress),
        )
        watch = DegradationWatch()
        for number, line in enumerate(lines, 1):
            trainer.state.recompiles, trainer.state.read_retries = line.get("recompiles"), line.get("retries")
            trainer.task.attention_used = {0: line.get("ran", "sdpa")}
            watch(trainer, None)
            try:
                watch.enforce(trainer, None)
            except StopRequested:
                return trainer, number
        return trainer, None

    return run


def recompiles(*counts):
    return [{"recompiles": count} for count in counts]


def test_flat_counters_stop_nothing(observe):
    trainer, stopped_at = observe(recompiles(None, 0, *[0] * 50))
    assert (stopped_at, trainer.state.warnings, trainer.state.failure) == (None, {}, None)


def test_two_lines_of_growth_are_a_first_evaluation_and_a_first_clip(observe):
    trainer, stopped_at = observe(recompiles(0, 4, 4, 6, *[6] * 50))
    assert stopped_at is None
    assert trainer.state.warnings == {"recompiles": 2}


def test_the_third_growth_stops_with_a_checkpoint_and_names_the_counter(observe):
    trainer, stopped_at = observe(recompiles(0, 1, 1, 2, 2, 3))
    assert stopped_at == 6
    assert (trainer.state.failure.code, trainer.state.failure.exit_code) == ("DGR001", 4)
    assert trainer.state.failure.message == "recompiles grew to 3, in 3 of the last 20 log lines"


def test_growth_that_lies_further_back_than_the_window_is_forgotten(observe):
    flat = WINDOW_LINES // (GROWN_LINES - 1)
    counts = [number // flat for number in range(20 * flat)]
    assert observe(recompiles(*counts))[1] is None


def test_retried_reads_are_logged_and_end_nothing(observe, caplog):
    trainer, stopped_at = observe([{"retries": count} for count in range(6)])
    assert stopped_at is None
    assert trainer.state.warnings == {"read_retries": 5}
    assert "read_retries grew by 1 to 5" in caplog.text


def test_a_counter_of_another_rank_stops_this_one_too(observe):
    seen = iter(range(100))
    others = SimpleNamespace(sum_over_ranks=lambda own: [own[0] + next(seen), *own[1:]])
    assert observe([{}] * 10, world=others)[1] == 4


def test_a_smoke_run_is_only_warned(observe):
    trainer, stopped_at = observe(recompiles(*range(9)), on_degradation="warn")
    assert (stopped_at, trainer.state.failure) == (None, None)
    assert trainer.state.warnings == {"recompiles": 8}


@pytest.fixture
def falling_back(monkeypatch):
    """Have block 0 run another attention kernel than the resolved one, from the first step on."""
    real = TokenObjective.forward

    def forward(self, *args, **kwargs):
        loss = real(self, *args, **kwargs)
        self.attention_used[0] = "eager"
        return loss

    with monkeypatch.context() as patch:
        patch.setattr(TokenObjective, "forward", forward)
        yield patch


def test_a_kernel_that_falls_back_ends_the_run_and_loses_no_step(
    make_run, run, outcome, metrics, beats, exact, uninterrupted, falling_back
):
    run_dir = make_run()
    with pytest.raises(ProjectError, match="kernel_fallbacks grew to 3, in 3 of the last 20"):
        run(run_dir)
    assert (outcome(run_dir)["status"], outcome(run_dir)["exit_code"]) == ("failed", 4)
    assert outcome(run_dir)["step"] == 9
    assert folders.checkpoint_steps(run_dir / "checkpoints") == [5, 9]
    lines = [line for line in metrics(run_dir) if "train/loss" in line]
    assert [(line["step"], line["perf/kernel_fallbacks"]) for line in lines] == [(3, 1), (6, 2), (9, 3)]
    last = beats(run_dir)[-1]
    assert (last["phase"], last["kernel_fallbacks"], last["read_retries"]) == ("failed", 3, None)
    assert last["warnings"] == {"kernel_fallbacks": 3}
    falling_back.undo()
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted


def test_a_retried_read_is_in_metrics_and_heartbeat(make_run, run, metrics, beats, monkeypatch, caplog):
    caplog.set_level("INFO")
    monkeypatch.delenv("TOKENIZERS_PARALLELISM")
    real = RetryingReader._read_chunk

    def read(self, *args):
        if self.num_retries < 2:
            raise ConnectionError("gone")
        return real(self, *args)

    monkeypatch.setattr(RetryingReader, "_read_chunk", read)
    run_dir = make_run(
        dataset={"streaming": True, "streaming_read_retry_backoff_seconds": 0.001},
        trainer={"max_steps": 3, "eval_steps": 0},
    )
    assert run(run_dir) == 0
    assert metrics(run_dir)[-1]["data/read_retries"] == 2
    assert beats(run_dir)[-1]["read_retries"] == 2
    (settings,) = [each.message for each in caplog.records if each.message.startswith("data loader: ")]
    assert settings.startswith("data loader: num_workers 1, 4 microbatches ahead, ")
    assert settings.endswith(", TOKENIZERS_PARALLELISM true")

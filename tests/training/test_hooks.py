"""A hook runs on its cadence, and at the ends where it says so."""

import pytest
from safetensors.numpy import load_file

from neobert.training.loop import session
from neobert.training.loop.hooks import Hook, Stage


def due(**cadence):
    hook = Hook(name="hook", act=lambda trainer, report: None, **cadence)
    return [step for step in range(11) if hook.is_due(step, 10)]


@pytest.mark.parametrize(
    ("cadence", "steps"),
    [
        ({"every": 4}, [4, 8, 10]),
        ({"every": 5}, [5, 10]),
        ({"every": 4, "at_start": True}, [0, 4, 8, 10]),
        ({"every": 4, "at_end": False}, [4, 8]),
        ({"every": 0}, [10]),
        ({"every": 0, "at_start": True}, [0, 10]),
        ({"every": 100}, [10]),
    ],
)
def test_cadence(cadence, steps):
    assert due(**cadence) == steps


def test_within_a_stage_the_order_of_hooks_changes_nothing(
    make_run, run, uninterrupted, exact, metrics, beats, monkeypatch
):
    ordered, stages = session.build_hooks, []

    def reverse(*arguments):
        hooks = ordered(*arguments)
        stages.extend(hook.stage for hook in hooks)
        return hooks[::-1]

    reversed_one, straight = make_run("reversed"), make_run("straight")
    with monkeypatch.context() as patch:
        patch.setattr(session, "build_hooks", reverse)
        assert run(reversed_one) == 0
    assert stages == sorted(stages)
    assert set(stages) == set(Stage)
    assert run(straight) == 0
    assert exact(reversed_one) == exact(straight) == uninterrupted
    assert [set(line) for line in metrics(reversed_one)] == [set(line) for line in metrics(straight)]
    kept = [[(beat["step"], beat["loss"]) for beat in beats(each)] for each in (reversed_one, straight)]
    assert sorted(set(map(str, kept[0]))) == sorted(set(map(str, kept[1])))
    for name in ("model.safetensors", "trainer_state/optimizer.safetensors"):
        first, second = (load_file(each / "checkpoints/12" / name) for each in (reversed_one, straight))
        assert all((first[key] == second[key]).all() for key in second)


def test_a_metric_that_was_measured_is_not_replaced(make_run, run, metrics, monkeypatch):
    fake = Hook(name="fake", act=lambda *_: {"train/loss": -1.0, "x": 2.0}, every=3, stage=Stage.EVALUATE)
    ordered = session.build_hooks
    monkeypatch.setattr(session, "build_hooks", lambda *arguments: [*ordered(*arguments), fake])
    run_dir = make_run(trainer={"max_steps": 3})
    run(run_dir)
    line = metrics(run_dir)[-1]
    assert line["x"] == 2.0
    assert line["train/loss"] > 0

"""A session that is begun again goes on from the run's own checkpoint, or begins where it began."""

from dataclasses import replace
from datetime import timedelta

import pytest

from launcher.process.trainer_process import AGAIN
from neobert import train
from neobert.config import from_dict
from neobert.receipt import FILE_NAME, read_receipt, utc_now, write_receipt
from neobert.training.loop import session


@pytest.mark.parametrize(
    ("requested", "has_own", "expected"),
    [
        ("never", False, "auto"),
        ("never", True, "auto"),
        ("auto", True, "auto"),
        ("latest", True, "auto"),
        ("other/checkpoints/5", False, "other/checkpoints/5"),
        ("other/checkpoints/5", True, "auto"),
    ],
)
def test_where_a_session_goes_on(tmp_path, requested, has_own, expected):
    if has_own:
        (tmp_path / "checkpoints" / "7").mkdir(parents=True)
    config = from_dict({"trainer": {"resume_from_checkpoint": requested}})
    assert train.resume_own_run(config, tmp_path).trainer.resume_from_checkpoint == expected


def test_the_launcher_and_the_trainer_mean_the_same_word():
    assert AGAIN == train.AGAIN


@pytest.mark.parametrize("arguments", [[], ["a", "b"], ["a", AGAIN, AGAIN]])
def test_other_words_are_refused(arguments):
    assert train.main(arguments) == 2


@pytest.mark.parametrize(("more", "code"), [((), 1), ((AGAIN,), 0)])
def test_a_receipt_that_held_at_the_launch_holds_for_a_session_that_is_begun_again(
    make_run, monkeypatch, more, code
):
    run_dir = make_run()
    path, issued = run_dir / FILE_NAME, utc_now() - timedelta(days=2)
    times = {"created_utc": issued, "expires_utc": issued + timedelta(days=1)}
    reported = {name: time.isoformat() for name, time in times.items()}
    write_receipt(replace(read_receipt(path), **reported), path)
    monkeypatch.setattr(session, "run_session", lambda *_, **_how: 0)
    assert train.main([str(run_dir / "resolved.json"), *more]) == code


def test_a_session_that_is_begun_again_needs_the_receipt_of_its_config(make_run, monkeypatch):
    run_dir = make_run()
    path = run_dir / FILE_NAME
    write_receipt(replace(read_receipt(path), config_digest="0" * 64), path)
    monkeypatch.setattr(session, "run_session", lambda *_, **_how: 0)
    assert train.main([str(run_dir / "resolved.json"), AGAIN]) == 1

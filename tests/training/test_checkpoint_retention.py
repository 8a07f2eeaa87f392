"""What stays, what goes, and what is best. A checkpoint that cannot go costs no run."""

import errno
import shutil
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from neobert.config.schema import TrainerConfig
from neobert.plan.saves import max_kept_checkpoints
from neobert.runfiles.checkpoint import folders
from neobert.training.checkpoint import publish, retention

NOW = "2026-01-01T00:00:00+00:00"
STEPS = st.sets(st.integers(1, 40), min_size=1, max_size=9)


def save(root, step, **metrics):
    publish.publish(root, step, "digest", NOW, lambda folder: (folder / "w").write_bytes(b"w"), metrics)


def names(root):
    return {path.name for path in root.iterdir()}


@settings(max_examples=60)
@given(
    steps=STEPS,
    limit=st.integers(0, 5),
    keep_every=st.integers(0, 6),
    resumed=st.none() | st.integers(1, 40),
    values=st.dictionaries(st.integers(1, 40), st.floats(0, 9)),
)
def test_what_must_stay_stays_and_the_rest_goes(tmp_path, steps, limit, keep_every, resumed, values):
    root = tmp_path / "checkpoints"
    shutil.rmtree(root, ignore_errors=True)
    for step in sorted(steps):
        save(root, step, **({"eval/loss": values[step]} if step in values else {}))
    trainer = TrainerConfig(
        save_total_limit=limit, save_keep_every=keep_every, metric_for_best_model="eval/loss"
    )
    retention.apply_retention(root, trainer, resumed)
    judged = {step: values[step] for step in steps & set(values)}
    best = min(judged, key=lambda step: (judged[step], step), default=None)
    newest = set(sorted(steps)[-max(limit, 2) :])
    multiples = {step for step in steps if keep_every and step % keep_every == 0}
    expected = steps if limit == 0 else newest | multiples | ({best, resumed} & steps)
    assert set(folders.checkpoint_steps(root)) == expected
    assert folders.follow_pointer(root, "best") == (None if best is None else (root / str(best)).resolve())


CADENCE, END = 100, 1000


@dataclass
class Disk:
    """A folder of checkpoints, how sessions use it, and the most that ever lay there at once."""

    root: Path
    trainer: TrainerConfig
    peak: int = 0

    def session(self, start: int | None, num_saves: int, offset: int, values: list[float]) -> None:
        """Go on from a step, save at the cadence, and `offset` beyond the last of it, where a stop does."""
        if start is not None:
            publish.set_aside_after(self.root, start)
        steps = [step for step in range(CADENCE, END + 1, CADENCE) if step > (start or 0)][:num_saves]
        if offset and steps and steps[-1] < END:
            steps.append(steps[-1] + offset)
        for step, value in zip(steps, values, strict=False):
            publish.publish(self.root, step, "digest", NOW, self._write, {"eval/loss": value})
            retention.apply_retention(self.root, self.trainer, start)

    def starts(self) -> list[int]:
        """The steps that a session may be asked to go on from."""
        aside = [step for step, _ in folders.superseded_checkpoints(self.root)]
        return sorted({*folders.checkpoint_steps(self.root), *aside})

    def _write(self, folder: Path) -> None:
        (folder / "w").write_bytes(b"w")
        there = sum(path.is_dir() and not path.is_symlink() for path in self.root.iterdir())
        self.peak = max(self.peak, there)


@settings(max_examples=20, deadline=None)
@given(
    limit=st.integers(0, 4),
    keep_every=st.sampled_from([0, 100, 300, 450]),
    metric=st.sampled_from([None, "eval/loss"]),
    sessions=st.lists(
        st.tuples(st.integers(0, 3), st.integers(3, 10), st.sampled_from([0, 37])), min_size=2, max_size=4
    ),
    values=st.lists(st.floats(0, 9), min_size=11, max_size=11),
)
def test_no_more_lies_on_the_disk_than_the_plan_says(tmp_path, limit, keep_every, metric, sessions, values):
    root = tmp_path / "checkpoints"
    shutil.rmtree(root, ignore_errors=True)
    trainer = TrainerConfig(
        max_steps=END,
        save_steps=CADENCE,
        save_total_limit=limit,
        save_keep_every=keep_every,
        metric_for_best_model=metric,
    )
    disk = Disk(root, trainer)
    for choice, num_saves, offset in sessions:
        starts = disk.starts()
        # Where all are kept, what stops save is as much as there are stops: no plan knows that.
        start = starts[choice % len(starts)] if starts else None
        disk.session(start, num_saves, offset if limit else 0, values)
    assert disk.peak <= max_kept_checkpoints(trainer, END // CADENCE) + 1


@pytest.mark.parametrize(
    ("changes", "sessions", "peak"),
    [
        ({"save_total_limit": 3}, [(None, 4), (200, 6)], 6),
        ({"save_total_limit": 1}, [(None, 3), (200, 6)], 5),
        ({"save_total_limit": 0}, [(None, 10), (100, 9), (900, 1)], 12),
        ({"save_total_limit": 2, "metric_for_best_model": "eval/loss"}, [(None, 3), (200, 6)], 6),
    ],
)
def test_as_much_lies_on_the_disk_as_the_plan_says(tmp_path, changes, sessions, peak):
    trainer = TrainerConfig(max_steps=END, save_steps=CADENCE, **changes)
    disk = Disk(tmp_path, trainer)
    for start, num_saves in sessions:
        disk.session(start, num_saves, 0, [9.0, 4.0, *[9.0] * 8] if start else [9.0] * 10)
    assert disk.peak == peak == max_kept_checkpoints(trainer, END // CADENCE) + 1


def test_more_of_an_accuracy_is_better_unless_said_otherwise(tmp_path):
    for step, value in ((1, 0.2), (2, 0.4), (3, 0.3), (4, 0.4)):
        save(tmp_path, step, **{"eval/accuracy": value})
    selecting = TrainerConfig(metric_for_best_model="eval/accuracy")
    assert retention.link_best(tmp_path, selecting) == 2
    assert retention.link_best(tmp_path, replace(selecting, greater_is_better=False)) == 1
    assert retention.link_best(tmp_path, replace(selecting, metric_for_best_model="eval/loss")) is None


def test_of_equal_accuracies_the_lower_loss_is_better(tmp_path):
    for step, loss in ((1, 0.9), (2, 0.1), (3, 0.1)):
        save(tmp_path, step, **{"eval/accuracy": 1.0, "eval/loss": loss})
    save(tmp_path, 4, **{"eval/accuracy": 0.9, "eval/loss": 0.01})
    save(tmp_path, 5, **{"eval/accuracy": 1.0})
    assert retention.link_best(tmp_path, TrainerConfig(metric_for_best_model="eval/accuracy")) == 2


def test_a_checkpoint_whose_manifest_is_gone_is_not_judged(tmp_path):
    save(tmp_path, 1, **{"eval/loss": 1.0})
    save(tmp_path, 2, **{"eval/loss": 2.0})
    (tmp_path / "1" / "checkpoint.json").unlink()
    assert retention.link_best(tmp_path, TrainerConfig(metric_for_best_model="eval/loss")) == 2


def test_a_removal_that_is_refused_is_said_and_no_more(tmp_path, monkeypatch, caplog):
    for step in (1, 2, 3, 4):
        save(tmp_path, step)
    real = type(tmp_path).rename

    def refuse(path, target):
        if path.name == "1":
            raise OSError(errno.EACCES, "Permission denied")
        return real(path, target)

    monkeypatch.setattr(type(tmp_path), "rename", refuse)
    assert retention.remove_old_checkpoints(tmp_path, 2, 0, frozenset()) == [2]
    assert "could not be removed" in caplog.text
    assert names(tmp_path) == {"1", "3", "4", "latest"}


def test_a_best_link_that_is_refused_is_said_and_no_more(tmp_path, monkeypatch, caplog):
    save(tmp_path, 1, **{"eval/loss": 1.0})

    def refuse(*_):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(retention, "point_link", refuse)
    assert retention.link_best(tmp_path, TrainerConfig(metric_for_best_model="eval/loss")) == 1
    assert "could not be updated" in caplog.text


def test_what_goes_away_while_it_is_looked_at_costs_no_save(tmp_path, monkeypatch, caplog):
    save(tmp_path, 1)
    real = type(tmp_path).iterdir

    def stale(path):
        yield from real(path)
        raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(type(tmp_path), "iterdir", stale)
    retention.apply_retention(tmp_path, TrainerConfig(), None)
    assert "could not be listed" in caplog.text


def test_of_what_was_set_aside_the_newest_stays(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    publish.set_aside_after(tmp_path, 1)
    assert names(tmp_path) == {"1", "latest", ".superseded-2-0", ".superseded-3-0"}
    assert retention.remove_superseded(tmp_path) == [".superseded-2-0"]
    save(tmp_path, 2)
    publish.set_aside_after(tmp_path, 1)
    assert retention.remove_superseded(tmp_path) == [".superseded-3-0"]
    assert names(tmp_path) == {"1", "latest", ".superseded-2-0"}


@pytest.mark.parametrize("name", [".superseded-x", ".superseded-", ".superseded-3", ".superseded-3-0.bak"])
def test_what_only_looks_set_aside_is_somebodys_and_stays(tmp_path, name):
    (tmp_path / name).mkdir()
    for step in (1, 2, 3):
        save(tmp_path, step)
    publish.set_aside_after(tmp_path, 1)
    retention.apply_retention(tmp_path, TrainerConfig(save_total_limit=2), None)
    assert names(tmp_path) == {"1", "latest", ".superseded-3-0", name}


def test_what_is_in_quarantine_is_kept_and_latest_moves_on(tmp_path):
    for step in (1, 2, 3):
        save(tmp_path, step)
    rejected = [folders.RejectedCheckpoint(3, "damaged"), folders.RejectedCheckpoint(2, "damaged")]
    publish.quarantine(tmp_path, rejected, "1")
    assert names(tmp_path) == {"1", ".corrupt-2-0", ".corrupt-3-0", "latest"}
    assert folders.find_checkpoint(tmp_path, "latest")[1].step == 1
    publish.delete_temporary_files(tmp_path)
    assert folders.corrupt_checkpoint_names(tmp_path) == [".corrupt-2-0", ".corrupt-3-0"]


def test_a_link_to_a_best_that_is_gone_goes_too(tmp_path):
    best = TrainerConfig(metric_for_best_model="eval/loss")
    save(tmp_path, 1)
    save(tmp_path, 2, **{"eval/loss": 1.0})
    retention.apply_retention(tmp_path, best, None)
    publish.set_aside_after(tmp_path, 1)
    retention.apply_retention(tmp_path, best, None)
    assert folders.follow_pointer(tmp_path, "best") is None
    assert not (tmp_path / "best").is_symlink()

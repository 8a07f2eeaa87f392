"""Checkpoints of version 0.2.0, whose stored configs have keys that were removed since."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from neobert.config import from_dict
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.manifest import FILE_NAME, seal_checkpoint
from neobert.runfiles.checkpoint.state import CONFIG, STATE_DIR
from neobert.runfiles.continuation import checkpoint_config, with_checkpoint_text
from neobert.training.checkpoint.content import OPTIMIZER_FILE
from neobert.training.loop.assembly import choose_start
from tests.killed_run import killed_before
from tests.refusals import refusal_of
from tests.training.conftest import train, write_run

UNSET: dict[str, dict[str, Any]] = {
    "trainer": {"ema_decay": None},
    "datacollator": {"mlm_probability_final": None, "mlm_probability_over": "run"},
}
AVERAGED = {"trainer": {"ema_decay": 0.8}}
FALLING = {"datacollator": {"mlm_probability_final": 0.1, "mlm_probability_over": "decay"}}
SET = {"trainer.ema_decay: 0.8": AVERAGED, "datacollator.mlm_probability_final: 0.1": FALLING}


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory, corpus: dict[str, str]) -> Path:
    """Return a run that was killed after its checkpoint of step 5."""
    run_dir = write_run(tmp_path_factory.mktemp("killed") / "run", corpus, {})
    with killed_before(8):
        train(run_dir)
    return run_dir


@pytest.fixture
def old_run(killed: Path, make_run: Callable[..., Path]) -> Callable[..., Path]:
    """Copy the run, with keys in the stored configs of its checkpoint and of its run directory."""

    def copy(sections: dict[str, dict[str, Any]], change: Callable[[Path], None] = lambda _: None) -> Path:
        run_dir = make_run()
        shutil.copytree(killed / "checkpoints", run_dir / "checkpoints", symlinks=True)
        for name in ("metrics.jsonl", "heartbeat_rank0.jsonl"):
            shutil.copy(killed / name, run_dir)
        folder = run_dir / "checkpoints" / "5"
        path = folder / STATE_DIR / CONFIG
        saved = json.loads(path.read_text(encoding="utf-8"))
        path.write_text(json.dumps({**saved, **{k: saved[k] | v for k, v in sections.items()}}), "utf-8")
        change(folder)
        (folder / FILE_NAME).unlink()
        seal_checkpoint(folder, 5, "0" * 64, "2026-01-01T00:00:00+00:00")
        return run_dir

    return copy


def add_averages(folder: Path) -> None:
    """Add the trained weights to the optimizer state, as a run with trainer.ema_decay did."""
    path = folder / STATE_DIR / OPTIMIZER_FILE
    state, weights = load_file(path), load_file(folder / "model.safetensors")
    names = {name.partition("/")[2] for name in state}
    save_file(state | {f"weight/{name}": weights[name] for name in weights if name in names}, path)


def test_a_run_that_did_not_set_the_keys_resumes_bit_exactly(old_run, run, exact, uninterrupted):
    run_dir = old_run(UNSET)
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted


@pytest.mark.parametrize("difference", SET)
def test_a_run_that_set_a_key_is_refused_with_the_way_out(difference, old_run, run):
    run_dir = old_run(SET[difference])
    error = refusal_of(run, "CKP007", f"{difference} in the checkpoint; the key was removed", run_dir)
    assert "with version 0.2.0" in error.hint
    assert "start a new run in another trainer.output_dir" in error.hint
    assert "restore" not in error.hint
    assert ";" not in error.message.partition("the key was removed")[2], "one difference is named"


def test_a_run_on_other_text_does_not_continue_averages(old_run, make_run):
    checkpoint = old_run(AVERAGED) / "checkpoints" / "5"
    second = make_run("second", trainer={"continue_from": str(checkpoint)})
    config = from_dict(json.loads((second / "resolved.json").read_text(encoding="utf-8")))
    with pytest.raises(ProjectError, match=r"trainer\.ema_decay: 0\.8 in the checkpoint"):
        choose_start(config, second, is_restart=False)


def test_a_run_on_other_text_continues_a_run_whose_masking_rate_fell(old_run, make_run):
    """Text and masking are those of the new run; weights and optimizer state are as they were trained."""
    checkpoint = old_run(FALLING) / "checkpoints" / "5"
    second = make_run("second", trainer={"continue_from": str(checkpoint)})
    config = from_dict(json.loads((second / "resolved.json").read_text(encoding="utf-8")))
    start = choose_start(config, second, is_restart=False)
    assert (start.folder, start.is_other_text) == (checkpoint, True)


@pytest.mark.parametrize("keys", [UNSET, AVERAGED])
def test_the_text_of_an_older_run_is_evaluated(old_run, make_run, keys):
    """trainer.eval_source_path names its checkpoint: the text does not depend on the removed keys."""
    checkpoint = old_run(keys) / "checkpoints" / "5"
    config = from_dict(json.loads((make_run("second") / "resolved.json").read_text(encoding="utf-8")))
    assert with_checkpoint_text(config, checkpoint).dataset.path == checkpoint_config(checkpoint).dataset.path


def test_averages_are_recognized_by_the_tensors_too(old_run, run):
    """A config may be edited; what model.safetensors has shows in the optimizer state."""
    error = refusal_of(run, "CKP007", "model.safetensors has averaged weights", old_run(UNSET, add_averages))
    assert "version 0.2.0" in error.hint

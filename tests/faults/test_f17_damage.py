"""F17: any bit, any length, any file of a checkpoint. What is damaged is found, and an older one is used."""

import shutil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from launcher.rundir.records import read_json
from neobert.errors import ProjectError
from neobert.runfiles.checkpoint.folders import find_checkpoint, follow_pointer
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from tests.training.conftest import train, write_run

DAMAGE = ("flip", "truncate", "empty", "extend", "remove")


@pytest.fixture(scope="module")
def saved(tmp_path_factory, corpus):
    """A finished run, whose checkpoints are copied before they are damaged."""
    run_dir = write_run(tmp_path_factory.mktemp("saved") / "run", corpus, {"trainer": {"max_steps": 10}})
    train(run_dir)
    return run_dir


def files_of(folder):
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())


def spoil(path, damage, position, bit):
    content = bytearray(path.read_bytes())
    if damage == "remove":
        path.unlink()
        return
    if damage == "flip":
        content[position % len(content)] ^= 1 << bit
    elif damage == "truncate":
        del content[position % len(content) :]
    elif damage == "empty":
        content.clear()
    else:
        content += b"}"
    path.write_bytes(content)


def test_every_file_is_covered(saved):
    names = files_of(saved / "checkpoints" / "10")
    assert {"model.safetensors", "checkpoint.json", "tokenizer.json", "trainer_state/state.json"} <= set(
        names
    )
    assert len(names) > 10


@settings(max_examples=150)
@given(data=st.data())
def test_any_damage_to_any_file_is_found(saved, data):
    folder = saved / "checkpoints" / "10"
    name = data.draw(st.sampled_from(files_of(folder)))
    damage = data.draw(st.sampled_from(DAMAGE))
    position, bit = data.draw(st.integers(0, 10**6)), data.draw(st.integers(0, 7))
    whole = (folder / name).read_bytes()
    assert verify_checkpoint(folder).step == 10  # the control: it is the damage that is found
    try:
        spoil(folder / name, damage, position, bit)
        with pytest.raises(ProjectError) as error:
            verify_checkpoint(folder)
        assert error.value.code == "CKP007"
        found = find_checkpoint(folder.parent, "auto")
        assert found is not None
        assert found[1].step == 5
    finally:
        (folder / name).write_bytes(whole)


@pytest.mark.parametrize(("name", "damage"), [("model.safetensors", "flip"), ("checkpoint.json", "remove")])
def test_a_damaged_run_goes_on_from_the_older_one(saved, run, exact, tmp_path, name, damage):
    run_dir = tmp_path / "run"
    shutil.copytree(saved, run_dir, symlinks=True)
    expected = exact(run_dir)
    spoil(run_dir / "checkpoints" / "10" / name, damage, 1000, 3)
    assert follow_pointer(run_dir / "checkpoints", "latest").name == "10"
    assert run(run_dir) == 0
    assert exact(run_dir) == expected
    assert (run_dir / "checkpoints" / ".corrupt-10-0").is_dir()


@pytest.mark.e2e
def test_a_restart_names_the_checkpoint_that_it_resumes_from(launch, exact, capsys):
    run_dir, ending = launch({"kind": "damaged", "step": 12})
    assert (ending.status, ending.restarts) == ("finished", 1)
    (spoiled,) = (run_dir / "checkpoints").glob(".corrupt-*")
    resumed = int(spoiled.name.split("-")[1]) - 3
    log = (run_dir / "logs" / "rank_0.log").read_text(encoding="utf-8")
    assert f"resuming from {run_dir}/checkpoints/{resumed}, step {resumed}\n" in log
    (lost,) = read_json(run_dir / "manifest.json")["restarts"]
    assert lost["from"] == f"checkpoint {resumed}"
    assert f"restarting from checkpoint {resumed} " in capsys.readouterr().err
    assert [row["step"] for row in exact(run_dir)] == list(range(13))


def test_where_all_are_bad_nothing_is_overwritten(saved, run, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(saved, run_dir, symlinks=True)
    for step in ("5", "10"):
        spoil(run_dir / "checkpoints" / step / "model.safetensors", "flip", 1000, 3)
    before = {path.name for path in (run_dir / "checkpoints").iterdir()}
    history = (run_dir / "metrics.jsonl").read_bytes()
    for _ in range(2):
        with pytest.raises(
            ProjectError, match=r"no checkpoint passes verification \(10: .*model.safetensors.*; 5: "
        ):
            run(run_dir)
    assert {path.name for path in (run_dir / "checkpoints").iterdir()} == before
    assert (run_dir / "metrics.jsonl").read_bytes() == history


def test_what_is_in_quarantine_is_no_reason_to_start_afresh(saved, run, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(saved, run_dir, symlinks=True)
    (run_dir / "checkpoints" / "10").rename(run_dir / "checkpoints" / ".corrupt-10-0")
    shutil.rmtree(run_dir / "checkpoints" / "5")
    with pytest.raises(ProjectError, match=r"\.corrupt-10-0: in quarantine"):
        run(run_dir)

"""Models by their name on a hub: pinned to a commit, downloaded once, found again without a connection."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from huggingface_hub import constants

from neobert.hub_names import local_weights_path
from profiles.registry import resolve_run
from tests.launcher.model_folders import write_model
from tests.launcher.stub_hub import Hub, serving

NAME = "owner/tiny-bert"
INIT = ("init", "--from", NAME, "--text", "notes", "--device", "cpu")
pytestmark = pytest.mark.child


@pytest.fixture(autouse=True)
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Hub]:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)  # read when the library was imported
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    Path("notes").mkdir()
    Path("notes", "a.txt").write_text("A document of some words.\n\n" * 4000, encoding="utf-8")
    hub = Hub()
    folder = write_model(Path("source"))
    Path(folder, "README.md").write_text("not downloaded")
    Path(folder, "modeling_tiny.py").write_text("raise SystemExit('not downloaded')")
    Path(folder, "pytorch_model.bin").write_bytes(b"not downloaded")
    hub.push(NAME, folder)
    with serving(hub) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        yield hub


def push_again(hub: Hub) -> str:
    file = Path("source", "config.json")
    settings = json.loads(file.read_text(encoding="utf-8")) | {"layer_norm_eps": 1e-6}
    file.write_text(json.dumps(settings), encoding="utf-8")
    return hub.push(NAME, Path("source"))


def test_a_name_becomes_a_commit_whose_files_are_in_the_cache(hub, command):
    (commit,) = hub.commits[NAME]
    answer = command(*INIT, "configs/run.yaml").passed()
    assert f"downloading {NAME}@{commit[:12]}: 3 files" in answer.err
    config = resolve_run(None, ["configs/run.yaml"]).config
    assert (config.model.pretrained_checkpoint, config.model.revision) == (NAME, commit)
    assert (config.tokenizer.name, config.tokenizer.revision, config.tokenizer.path) == (NAME, commit, None)
    folder = Path(str(local_weights_path(config.model)))
    assert sorted(file.name for file in folder.iterdir()) == [
        "config.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    command("lint", "configs/run.yaml", "--strict").passed()


@pytest.mark.parametrize("revision", ["v1", "refs/pr/1"])
def test_another_revision_is_named_after_the_name(revision, hub, command):
    commit = hub.push(NAME, Path("source"), revision)
    newest = push_again(hub)
    assert command("init", "--from", f"{NAME}@{revision}", "--text", "notes").code == 0
    assert command(*INIT, "newest.yaml").code == 0
    runs = [resolve_run(None, [file]).config.model.revision for file in ("run.yaml", "newest.yaml")]
    assert runs == [commit, newest]


def test_a_download_that_was_killed_keeps_complete_files(hub, command, start_child):
    hub.held = "model.safetensors"
    killed = start_child(*INIT)
    deadline = time.monotonic() + 60
    while not hub.reads("model.safetensors") and time.monotonic() < deadline:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    hub.held = ""
    assert not Path("run.yaml").exists()
    answer = command(*INIT)
    assert (answer.code, ": 1 file\n" in answer.err) == (0, True), answer.err
    assert (hub.reads("config.json"), hub.reads("tokenizer.json")) == (1, 1)


def test_a_branch_that_moved_is_said_and_the_commit_kept(hub, command, launch):
    train = ("train", "--from", NAME, "--text", "notes", "--trainer.max_steps", "200")
    (pinned,) = hub.commits[NAME]
    launch(*train, fake="finish").passed()
    assert (
        json.loads(Path("runs/tiny-bert-notes/receipt.json").read_text())["config"]["model"]["revision"]
        == pinned
    )
    moved = push_again(hub)
    again = launch(*train, fake="finish").passed()
    moves = f"{NAME}@main has moved to {moved[:12]}"
    assert f"note: {moves}; tiny-bert-notes.yaml still uses {pinned[:12]} (model.revision)" in again.err
    assert resolve_run(None, ["tiny-bert-notes.yaml"]).config.model.revision == pinned
    assert hub.reads("config.json") == 1


def test_without_a_connection_the_cache_is_used(hub, command, launch, monkeypatch):
    (commit,) = hub.commits[NAME]
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    command(*INIT).refused(2, "is not in the local cache, and there is no connection")
    assert hub.requests == []
    monkeypatch.setenv("HF_HUB_OFFLINE", "")
    assert command(*INIT).code == 0
    num_requests = len(hub.requests)
    for without in ({"HF_HUB_OFFLINE": "1"}, {"HF_ENDPOINT": "http://127.0.0.1:9"}):
        for name, value in without.items():
            monkeypatch.setenv(name, value)
        Path("run.yaml").unlink()
        answer = command(*INIT)
        assert (answer.code, f"{NAME}@{commit[:12]} from the local cache" in answer.err) == (0, True), (
            answer.err
        )
        assert launch("train", "run.yaml", "--trainer.max_steps", "200", fake="finish").code == 0
    assert len(hub.requests) == num_requests


def test_train_downloads_what_lint_reports(hub, command, launch, monkeypatch):
    (commit,) = hub.commits[NAME]
    assert command(*INIT).code == 0
    monkeypatch.setenv("HF_HUB_CACHE", "elsewhere")
    linted = command("lint", "run.yaml")
    assert f"{NAME} at {commit[:12]} is not in the local Hub cache" in linted.out
    assert f"hint: run `hf download {NAME} --revision {commit}`" in linted.out
    trained = launch("train", "run.yaml", "--trainer.max_steps", "200", fake="finish")
    assert (trained.code, f"downloading {NAME}@{commit[:12]}" in trained.err) == (0, True)
    assert command("lint", "run.yaml", "--strict").code == 0


@pytest.mark.parametrize(
    ("name", "problem", "way"),
    [
        (
            "owner/pickled",
            "the weights are pickles (pytorch_model.bin), which may run code",
            "save_pretrained",
        ),
        ("owner/gguf", "the repository has no model.safetensors", "with safetensors weights"),
        ("owner/files", "the repository has no config.json", "of a transformers model"),
        ("owner/absent", "neither a local folder nor a public repository on the Hub", "correct the name"),
        (f"{NAME}@v9", "the Hub has no revision v9", "NAME@REVISION"),
        (f"{NAME}@../../notes", "../../notes is not a revision", "NAME@REVISION"),
        (
            "owner/albert",
            "architecture albert is not supported",
            "pass as --from a model of a supported type",
        ),
    ],
)
def test_what_cannot_be_used_is_refused(name, problem, way, hub, command):
    pickled = write_model(Path("pickled"))
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    hub.push("owner/pickled", pickled)
    gguf = write_model(Path("gguf"))
    (gguf / "model.safetensors").rename(gguf / "model.gguf")
    hub.push("owner/gguf", gguf)
    files = write_model(Path("files"))
    (files / "config.json").unlink()
    hub.push("owner/files", files)
    hub.push("owner/albert", write_model(Path("albert"), "albert"))
    Path("albert", "model.safetensors").write_bytes((2).to_bytes(8, "little") + b"{}")
    hub.push("owner/albert", Path("albert"))
    answer = command("init", "--from", name, "--text", "notes")
    assert answer.code in (1, 2)
    assert problem in answer.err
    assert way in answer.err
    assert not Path("run.yaml").exists()
    assert hub.reads("pytorch_model.bin") == 0


def test_a_name_without_a_commit_is_a_warning(command, run_file):
    path = run_file(f"profile: cpu\nmodel: {{pretrained_checkpoint: {NAME}, revision: main}}\n")
    answer = command("lint", path)
    assert "DAT034" in answer.out
    assert "model.revision main is not a commit" in answer.out
    assert f"`neobert-launch init --from {NAME}` writes the key" in answer.out

"""`serve`: what the server of transformers is started with."""

import shutil
import subprocess
from pathlib import Path

import pytest

from launcher.commands import serve

LISTING = """
from transformers.cli.serving.model_manager import ModelManager
print([each["id"] for each in ModelManager.get_gen_models()])
"""
"""What the server runs for a request of /v1/models."""


@pytest.mark.child
@pytest.mark.parametrize(("name", "is_listed"), [("chatty", True), ("chatty--two", False)])
def test_the_served_model_is_listed_alone(name, is_listed, chatty, warm_python, tmp_path, monkeypatch, capfd):
    """The first request of many clients was an error of the server, then an empty list."""
    folder = Path(shutil.copytree(chatty, tmp_path / name))
    started: list[list[str]] = []
    run = subprocess.run

    def list_models(command, **how):
        started.append(command)
        return run([warm_python, "-c", LISTING], **how)

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr(serve, "NEEDED", ())
    monkeypatch.setattr(subprocess, "run", list_models)
    assert serve.run(folder, "127.0.0.1", 8000, None) == 0
    assert started[0][3:] == ["serve", str(folder), "--host", "127.0.0.1", "--port", "8000"]
    assert capfd.readouterr().out == f"{[str(folder)] if is_listed else []}\n"

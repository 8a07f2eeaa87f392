"""`serve`: what the server of transformers is started with."""

from __future__ import annotations

import subprocess
import sys

import pytest

from launcher.commands import serve

LISTING = "from huggingface_hub import scan_cache_dir; print(len(scan_cache_dir().repos))"
"""What the server runs for a request of /v1/models."""


@pytest.mark.child
def test_models_are_listed_on_a_machine_without_a_cache_of_the_hub(chatty, tmp_path, monkeypatch, capfd):
    """The first request of many clients was an error of the server."""
    started: list[list[str]] = []
    run = subprocess.run

    def list_models(command, **how):
        started.append(command)
        return run([sys.executable, "-c", LISTING], **how)

    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "none"))
    monkeypatch.setattr(serve, "NEEDED", ())
    monkeypatch.setattr(subprocess, "run", list_models)
    assert serve.run(chatty, "127.0.0.1", 8000, None) == 0
    assert started[0][3:] == ["serve", str(chatty), "--host", "127.0.0.1", "--port", "8000"]
    assert capfd.readouterr().out == "0\n"

"""F23: a bad shard, an id beyond the vocabulary, a cut file, one very long document: found before step 1."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher.cli import app
from tests.training.conftest import write_corpus

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]
Judge = Callable[..., dict[str, dict[str, Any]]]


@pytest.fixture
def judge(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Judge:
    """Run `preflight --level data` on a small text; return each check by its code."""
    monkeypatch.chdir(tmp_path)
    corpus = write_corpus(tmp_path)
    keys = [f"dataset.{key}={value}" for key, value in corpus.items()]
    keys += ["dataset.name=null", "dataset.eval_samples=10", "tokenizer.vocab_size=256"]
    keys += ["dataset.max_seq_length=32", "trainer.per_device_train_batch_size=2"]
    run = [f"--set={key}" for key in keys]

    def run_level(*more: str, profile: str = "cpu-demo") -> dict[str, dict[str, Any]]:
        capsys.readouterr()
        app.run(
            [
                "preflight",
                "-p",
                profile,
                *run,
                *more,
                "--level",
                "data",
                "--output",
                "out",
                "--output-format",
                "json",
            ]
        )
        report = json.loads(capsys.readouterr().out)
        return {check["id"]: check for check in report["checks"]}

    return run_level


def folder_of(tmp_path: Path) -> Path:
    (folder,) = (path.parent for path in tmp_path.glob("cache/*/manifest.json"))
    return folder


def failed(checks: dict[str, dict[str, Any]]) -> set[str]:
    return {code for code, check in checks.items() if check["status"] == "fail"}


def test_sound_text_then_a_flipped_bit_a_foreign_id_and_a_cut_file(judge, tmp_path):
    checks = judge()
    assert {check["status"] for check in checks.values()} <= {"pass", "skip", "warn"}, checks
    assert checks["DAT003"]["status"] == checks["NUM006"]["status"] == "pass"
    tokens = folder_of(tmp_path) / "train.tokens"
    sound = tokens.read_bytes()

    tokens.write_bytes(bytes([sound[0] ^ 1]) + sound[1:])
    checks = judge()
    assert "DAT015" in failed(checks)
    assert "train.tokens does not match its checksum" in checks["DAT015"]["message"]

    ids = np.frombuffer(sound, "<u2").copy()
    ids[-1] = 60_000
    tokens.write_bytes(ids.tobytes())
    checks = judge()
    assert failed(checks) == {"DAT002", "DAT015"}
    assert "token id 60,000" in checks["DAT002"]["message"]
    assert checks["DAT003"]["status"] == "unknown"

    tokens.write_bytes(sound[:64])
    checks = judge()
    assert failed(checks) == {"DAT014"}
    assert "DAT001" in checks["DAT014"]["message"]
    assert checks["DAT002"]["status"] == "unknown"

    tokens.write_bytes(sound)
    assert failed(judge()) == set()


def test_one_very_long_document_at_the_end(judge, tmp_path):
    """It is cut to the context, so no microbatch is longer for it; who forbids it hears of it early."""
    text = tmp_path / "text.jsonl"
    long = json.dumps({"text": " ".join(["bado"] * 20_000)})
    text.write_text(text.read_text(encoding="utf-8") + "\n" + long, encoding="utf-8")
    assert failed(judge()) == set()
    checks = judge("--set=dataset.long_documents=error")
    assert failed(checks) == {"DAT014"}
    assert "DAT012" in checks["DAT014"]["message"]
    lost = judge("--set=dataset.long_documents=truncate", profile="cpu")["DAT005"]
    assert lost["status"] == "warn"
    assert "truncation loses" in lost["message"]


def test_text_that_is_not_there(judge):
    checks = judge("--set=dataset.path=absent.jsonl")
    assert failed(checks) == {"DAT014"}
    assert checks["NUM006"]["status"] == "unknown"

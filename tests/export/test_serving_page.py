"""The export and the server of docs/serving.md, which answers with the scores of `predict`."""

import json
import re
import threading
from http.server import ThreadingHTTPServer
from pathlib import Path
from urllib.request import urlopen

import pytest
import torch
import transformers

from launcher.cli import app
from neobert.export.folder import read_tokenizer_files, write_hf_folder
from neobert.prediction.job import run
from neobert.prediction.request import Request
from tests.prediction.test_predict import LABELS, SIZES, sentences

PAGE = Path(__file__).parents[2] / "docs" / "serving.md"
pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]


@pytest.fixture
def folder(tmp_path, tokenizer_dir, monkeypatch):
    """The folder `runs/reviews` of the page, a BERT classifier in place of a run."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    config = transformers.BertConfig(**SIZES, max_position_embeddings=64, initializer_range=0.3, **LABELS)
    model = transformers.BertForSequenceClassification(config)
    write_hf_folder(model, read_tokenizer_files(tokenizer_dir), tmp_path / "runs" / "reviews")
    return tmp_path / "runs" / "reviews"


def test_the_server_answers_as_predict_does(folder, tmp_path):
    page = PAGE.read_text("utf-8")
    (export,) = re.findall(r"^neobert-launch (export .*)$", page, re.M)
    assert app.run(export.split()) == 0
    exported = tmp_path / "exported" / "onnx"  # with what text-embeddings-inference looks for
    assert {"config.json", "tokenizer.json", "onnx"} <= {each.name for each in exported.iterdir()}
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.M | re.S)
    scope = {"__name__": "server"}
    exec(compile(code, "server.py", "exec"), scope)
    texts = [text for text in sentences(20, 20) if text]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), "utf-8")
    run(Request(str(folder), str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), dtype="fp32"))
    wanted = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text("utf-8").splitlines()]
    with ThreadingHTTPServer(("127.0.0.1", 0), scope["Handler"]) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        body = json.dumps({"inputs": texts}).encode()
        with urlopen(f"http://127.0.0.1:{server.server_port}", body) as response:
            found = json.loads(response.read())
        server.shutdown()
    assert [each["label"] for each in found] == [row["prediction"] for row in wanted]
    assert [each["score"] for each in found] == pytest.approx(
        [row["probability"] for row in wanted], abs=1e-5
    )

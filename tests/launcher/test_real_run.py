"""Whole commands with the real trainer: stopped or killed and resumed, a run reads as one that was not."""

import json
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]

RUN_FILE = """\
profile: cpu-demo
model: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}
dataset: {name: null, path: text.txt, cache_dir: cache, max_seq_length: 32, eval_samples: 20, num_workers: 0}
tokenizer: {vocab_size: 256}
scheduler: {warmup_steps: 1}
trainer:
  output_dir: run
  max_steps: 40
  per_device_train_batch_size: 2
  per_device_eval_batch_size: 2
  save_steps: 5
  eval_steps: 20
  eval_max_batches: 1
  logging_steps: 1
"""


def history(folder: Path) -> list[dict[str, Any]]:
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{name: row[name] for name in ("step", "train/loss", "eval/loss") if name in row} for row in rows]


def test_stopped_and_gone_on_with_it_is_the_run_that_never_stopped(start_child, run_child, command):
    words = [f"document {number} speaks of {number % 7} things" for number in range(300)]
    Path("text.txt").write_text("\n\n".join(words), encoding="utf-8")
    Path("run.yaml").write_text(RUN_FILE, encoding="utf-8")

    in_whole = ("--set", "trainer.output_dir=whole", "--stages", "1,20")
    whole = run_child("train", "-c", "run.yaml", *in_whole, "--output-format", "json").passed()
    assert [line.partition(":")[0] for line in whole.err.splitlines() if line.startswith("stage")] == [
        "stage 1 passed",
        "stage 20 passed",
    ]
    assert whole.json["step"] == 40

    stopped = start_child("train", "@run.yaml", "--resume", "auto")
    deadline = time.monotonic() + 120
    while not any(Path("run").glob("checkpoints/[0-9]*")) and time.monotonic() < deadline:
        time.sleep(0.02)
    stopped.send_signal(signal.SIGTERM)
    out, err = stopped.communicate(timeout=120)
    assert stopped.returncode in (0, 75), out + err

    run_child("train", "@run.yaml", "--resume", "auto").passed()
    assert [row["step"] for row in history(Path("run"))] == list(range(41))
    assert history(Path("run")) == history(Path("whole"))
    note = "note: the text has changed since this run was trained on it (text.txt): to train on it, set"
    finished = ("train", "@run.yaml", "--resume", "auto")
    assert note not in command(*finished).err
    with Path("text.txt").open("a", encoding="utf-8") as text:
        text.write("\n\none more document")
    assert note in command(*finished).err
    manifest = json.loads(Path("run/manifest.json").read_text(encoding="utf-8"))
    launches = [*manifest["earlier"], manifest]
    ended = [each["outcome"]["step"] for each in manifest["earlier"]]  # none if the signal came too late
    assert [each["first_step"] for each in launches] == [0, *ended]
    assert all(each["num_ranks"] == 1 for each in launches)
    assert "finished  step 40/40" in command("status", "run").out
    assert command("report", "run", "whole").code == 0
    page = Path("run/compare.html").read_text(encoding="utf-8")
    titles = ("Loss: training", "Evaluation: accuracy", "Gradient norm")
    assert [title for title in titles if f'"title":"{title}"' not in page] == []
    assert command("report", "run").code == 0
    assert '"kind":"resume"' in Path("run/report.html").read_text(encoding="utf-8")


def test_a_run_of_one_epoch_is_planned_and_judged_by_its_epoch(run_child):
    """The steps after the end of the epoch cost no time and read no text."""
    words = [f"document {number} speaks of {number % 7} things" for number in range(300)]
    Path("text.txt").write_text("\n\n".join(words), encoding="utf-8")
    Path("run.yaml").write_text(RUN_FILE.replace("profile: cpu-demo", "profile: cpu"), encoding="utf-8")
    one = ("run.yaml", "--trainer.max_steps", "9000", "--trainer.max_epochs", "1")
    assert "DAT025" in run_child("plan", *one[:3]).out
    trained = run_child("train", *one, "--strict", "--output-format", "json").passed()
    judged = run_child("preflight", "--level", "data", *one, "--set", "trainer.output_dir=other", "-v")
    assert f"{trained.json['step']} steps x" in judged.out
    *_, last = Path("run/heartbeat_rank0.jsonl").read_text(encoding="utf-8").splitlines()
    assert json.loads(last)["eta_s"] == 0.0, "no evaluation is due after the epoch"
    assert "DAT004" in run_child("preflight", "--level", "data", *one[:3]).out


def test_a_run_of_an_earlier_version_keeps_its_lower_cased_tokenizer(run_child):
    """Such a version had neither key; its tokenizer is trained again here, because the cache is lost."""
    words = [f"Document {number} sagt Schönes über {number % 7} Dinge" for number in range(300)]
    Path("text.txt").write_text("\n\n".join(words), encoding="utf-8")
    Path("run.yaml").write_text(RUN_FILE, encoding="utf-8")
    before = ("--set", "tokenizer.lowercase=true", "--set", "tokenizer.strip_accents=true")
    run_child("train", "run.yaml", *before).passed()
    names = ("model.safetensors", "tokenizer.json")
    last = {name: Path("run/checkpoints/40", name).read_bytes() for name in names}

    for number in (35, 40):
        shutil.rmtree(f"run/checkpoints/{number}")
    for name in ("checkpoints/latest", "outcome.json"):
        Path("run", name).unlink()
    shutil.rmtree("cache")
    for file in (Path("run/resolved.json"), Path("run/provenance.json")):
        content = json.loads(file.read_text(encoding="utf-8"))
        for key in ("algorithm", "lowercase", "strip_accents"):
            content.get("tokenizer", {}).pop(key, None)
            content.pop(f"tokenizer.{key}", None)
        file.write_text(json.dumps(content), encoding="utf-8")

    resumed = run_child("train", "run.yaml", "--resume", "auto").passed()
    assert "resuming from step 30" in resumed.out + resumed.err
    assert {name: Path("run/checkpoints/40", name).read_bytes() for name in names} == last


def test_a_byte_level_tokenizer_is_trained_exported_and_encodes(run_child):
    words = [f"दस्तावेज़ {number} में {number % 7} शब्द" for number in range(300)]
    Path("text.txt").write_text("\n\n".join(words), encoding="utf-8")
    Path("run.yaml").write_text(RUN_FILE, encoding="utf-8")
    keys = ("tokenizer.algorithm=bpe", "tokenizer.vocab_size=384", "trainer.max_steps=2")
    run_child("train", "run.yaml", *(word for key in keys for word in ("--set", key))).passed()
    run_child("export", "run", "--to", "sentence-transformers", "--output", "exported").passed()
    for model, vectors in (("run", "a.npy"), ("exported/sentence-transformers", "b.npy")):
        run_child("encode", model, "text.txt", "--output", vectors).passed()
    assert Path("a.npy").read_bytes() == Path("b.npy").read_bytes()


LABELLED = """\
profile: cpu-classify
classification: {label_column: label, label_names: null}
model: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}
dataset: {name: null, path: texts.jsonl, train_split: train, cache_dir: cache, max_seq_length: 32}
tokenizer: {vocab_size: 256}
scheduler: {warmup_steps: 1}
trainer:
  output_dir: run
  max_epochs: 1
  per_device_train_batch_size: 8
  save_steps: 4
  eval_steps: 4
  logging_steps: 1
"""
WORDS = """\
profile: cpu
task: token_classification
token_classification: {label_names: [O, B-PER]}
model: {hidden_size: 32, num_hidden_layers: 1, num_attention_heads: 2, intermediate_size: 64}
dataset: {path: words.conll, cache_dir: cache, max_seq_length: 32}
tokenizer: {vocab_size: 64}
trainer: {output_dir: run, max_steps: 4}
"""


@pytest.mark.parametrize("task", ["texts", "words"])
def test_labels_of_one_class_start_no_run_of_any_profile(run_child, task):
    rows = [{"text": f"text {n} of many", "label": "good"} for n in range(200)]
    Path("texts.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    Path("words.conll").write_text("\n\n".join(f"word{n} O\nof O" for n in range(200)), encoding="utf-8")
    named = "classification.label_names=[bad, good]"
    more = ("--set", named) if task == "texts" else ()
    Path("run.yaml").write_text(LABELLED if task == "texts" else WORDS, encoding="utf-8")
    answer = run_child("train", "-c", "run.yaml", *more, "--output-format", "json")
    assert answer.code == 1, answer.out + answer.err
    failed = {each["code"]: each["message"] for each in answer.json["findings"] if each["severity"] == "fail"}
    assert set(failed) == {"DAT021"}
    assert "have label" in failed["DAT021"]
    assert not Path("run").exists()


def test_an_undefined_metric_is_found_before_the_run_and_does_not_end_it(run_child):
    """A Matthews correlation on one class counted as "not better": the run ended early, as finished."""
    rows = [{"text": f"text {n} of {n % 7}", "label": n % 3 == 0} for n in range(240)]
    Path("data").mkdir()
    for name, some in (("train", rows), ("dev", [row for row in rows if row["label"]][:20])):
        texts = [row | {"text": f"{name} {row['text']}"} for row in some]
        Path("data", f"{name}.jsonl").write_text("\n".join(map(json.dumps, texts)), encoding="utf-8")
    selected = "  metric_for_best_model: eval/mcc\n  early_stopping_patience: 1\n"
    content = LABELLED.replace("path: texts.jsonl", "path: data").replace("max_epochs: 1", "max_steps: 12")
    Path("run.yaml").write_text(content + selected, encoding="utf-8")

    refused = run_child("train", "-c", "run.yaml", "--output-format", "json")
    assert refused.code == 1, refused.out + refused.err
    [failed] = [each for each in refused.json["findings"] if each["severity"] == "fail"]
    assert failed["code"] == "TSK010"
    assert "eval/mcc is undefined: all texts of the evaluation have label 1" in failed["message"]
    assert failed["hint"].startswith("set trainer.metric_for_best_model to eval/loss")

    forced = run_child("train", "-c", "run.yaml", "--unguarded", "a trial of the warning").passed()
    assert "finished at step 12 of 12" in forced.out
    message = "eval/mcc has no value on the evaluation data: it cannot select a best checkpoint"
    assert f"{message} and does not count for early stopping" in forced.out + forced.err
    assert not Path("run", "checkpoints", "best").is_symlink()

    other = ("--set", "trainer.metric_for_best_model=eval/loss", "--set", "trainer.output_dir=other")
    assert run_child("train", "-c", "run.yaml", *other).code == 0


def test_a_decoder_is_pretrained_by_one_line(run_child):
    """The run file states the text alone: the architecture decides the task, and the width the rate."""
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    from tests.framed_tokenizers import END, tokenizer_of

    words = [f"word{number}" for number in range(60)]
    tokenizer_of("end of text", words, eos_token=END).save_pretrained("model")
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    ids = {"bos_token_id": 0, "eos_token_id": 1, "max_position_embeddings": 128}
    settings = LlamaConfig(vocab_size=64, num_key_value_heads=2, **ids, **sizes)
    LlamaForCausalLM(settings).save_pretrained("model")
    Path("notes").mkdir()
    texts = [" ".join(words[number % 40 : number % 40 + 9]) for number in range(2000)]
    Path("notes", "a.txt").write_text("\n\n".join(texts), encoding="utf-8")
    Path("causal.yaml").write_text("profile: cpu\ndataset:\n  path: notes/\n", encoding="utf-8")

    short = ("--model-name", "model", "--batch-size", "4", "--steps", "100")
    trained = run_child("pretrain", "@", "causal.yaml", *short).passed()
    losses = [float(each) for each in re.findall(r"^step .*  loss ([\d.]+) .* tokens/s", trained.out, re.M)]
    assert len(losses) == 10
    assert losses[-1] < losses[0] - 0.3
    (folder,) = re.findall(r"^checkpoint: (.+)$", trained.out, re.M)
    (loss,) = re.findall(r"^eval loss: \S+ -> ([\d.]+)", trained.out, re.M)
    assert float(loss) < losses[0] - 0.3
    assert type(AutoModelForCausalLM.from_pretrained(folder)) is LlamaForCausalLM

"""Plug-ins in whole commands: the examples of the page, refusals before a launch, resumes, exceptions."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from launcher.probes.plugins import probe_plugins
from launcher.probes.probe import Subject
from launcher.terminal import activity
from profiles.registry import resolve_run

pytestmark = pytest.mark.e2e
warm = pytest.mark.usefixtures("warm")

PAGE = Path(__file__).parents[2] / "docs" / "plugins.md"
FILE = re.compile(r"```(?:python|yaml)\n# ([\w.]+)\n(.*?)```", re.DOTALL)
SMALL = {
    "model.hidden_size": 32,
    "model.num_hidden_layers": 1,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "dataset.max_seq_length": 32,
    "dataset.cache_dir": "cache",
    "tokenizer.vocab_size": 256,
    "scheduler.warmup_steps": 1,
    "trainer.per_device_train_batch_size": 2,
    "trainer.max_steps": 12,
    "trainer.eval_steps": 4,
    "trainer.save_steps": 4,
    "trainer.logging_steps": 2,
    "trainer.eval_max_batches": 2,
}


@pytest.fixture(autouse=True)
def page() -> None:
    """Write the files of the page's examples."""
    for name, content in FILE.findall(PAGE.read_text(encoding="utf-8")):
        Path(name).write_text(content, encoding="utf-8")


@pytest.fixture
def run(command: Callable[..., Any]) -> Callable[..., Any]:
    """Run a command on a run file with a small model, and more keys."""

    def run(verb: str, file: str, *words: str, **keys: Any) -> Any:
        values = SMALL | {name.replace("__", "."): value for name, value in keys.items()}
        given = [word for name, value in values.items() for word in ("--set", f"{name}={value}")]
        return command(verb, file, *words, *given)

    return run


def rows(folder: str) -> list[dict[str, Any]]:
    lines = Path(folder, "metrics.jsonl").read_text(encoding="utf-8").splitlines()
    timed = ("time/", "perf/", "train/tokens_per", "memory/", "data/wait")
    return [
        {name: value for name, value in json.loads(line).items() if not name.startswith(timed)}
        for line in lines
    ]


def edit(name: str, before: str, after: str) -> None:
    content = Path(name).read_text(encoding="utf-8")
    assert before in content
    Path(name).write_text(content.replace(before, after), encoding="utf-8")


@warm
def test_a_killed_run_with_plugins_resumes_bit_for_bit_and_refuses_edited_files(run):
    run("train", "pretrain.yaml", trainer__output_dir="whole").passed()
    assert [line.split()[0] for line in Path("best.txt").read_text().splitlines()] == ["0", "4", "8", "12"]
    masked = json.loads(Path("whole/resolved.json").read_text())["plugins"]["code"]
    assert [line.partition("  ")[2] for line in masked] == ["masking.py", "notes.py", "rows.py", "wording.py"]
    assert json.loads(Path("whole/receipt.json").read_text())["config"]["plugins"]["code"] == masked

    # The run dies before its ninth step, as a kill would have it: no checkpoint is written for it. A thread
    # writes that of the fourth step, and may need longer than four steps.
    dies = (
        "        if step == 8:\n"
        "            while not __import__('os').path.exists('runs/pretrain/checkpoints/4'):\n"
        "                pass\n"
        "            __import__('os')._exit(9)\n"
    )
    edit("notes.py", "        if metrics", f"{dies}        if metrics")
    killed = run("train", "pretrain.yaml", watchdog__max_restarts=0)
    assert killed.code != 0
    assert sorted(path.name for path in Path("runs/pretrain/checkpoints").glob("[0-9]*")) == ["4"]

    edit("wording.py", "comes after", "is after")
    restarted = [sys.executable, "-m", "neobert.train", "runs/pretrain/resolved.json", "--again"]
    refused = subprocess.run(restarted, capture_output=True, text=True, check=False)
    assert refused.returncode == 1
    assert "wording.py was edited since the run was checked [PLG003]" in refused.stdout
    edit("wording.py", "is after", "comes after")

    edit("notes.py", dies, "")
    for name, before in (("notes.py", "best so far"), ("wording.py", "comes after")):
        edit(name, before, f"{before} ")
        refused = run("train", "pretrain.yaml", "--resume", "auto")
        edit(name, f"{before} ", before)
        assert refused.code == 1
        assert "fail PLG003 resumed-with-edited-plugin" in refused.out
        assert f"{name} was edited" in " ".join(refused.out.split())
    waiver = "[{code: PLG003, reason: the line that ended it is gone, expires: 2099-01-01}]"
    run("train", "pretrain.yaml", "--resume", "auto", waivers=waiver).passed()
    assert rows("runs/pretrain") == rows("whole")
    weights = [Path(run_dir, "checkpoints/12/model.safetensors") for run_dir in ("whole", "runs/pretrain")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    states = [Path(each.parent, "trainer_state/state.json") for each in weights]
    best = [json.loads(each.read_text())["plugins"] for each in states]
    assert best[0] == best[1] == {"notes.py:BestLoss": {"best": rows("whole")[-1]["eval/loss"]}}


@warm
def test_a_metric_of_a_plugin_selects_the_best_checkpoint_and_is_shown(run, command):
    trained = run("train", "classify.yaml").passed()
    costs = {row["step"]: row["eval/cost"] for row in rows("runs/classify") if "eval/cost" in row}
    assert sorted(costs) == [0, 4, 8, 12]
    assert f"cost {costs[12]:.4f}" in trained.out
    saved = {step: cost for step, cost in costs.items() if step}
    best = min(saved, key=lambda step: (saved[step], step))
    assert Path("runs/classify/checkpoints/best").resolve().name == str(best)
    assert f"cost {costs[12]:.4f}" in command("status", "runs/classify").out
    assert command("report", "runs/classify").code == 0
    assert '"title":"Evaluation: cost"' in Path("runs/classify/report.html").read_text(encoding="utf-8")

    edit("focal.py", "    loss =", "    if logits.requires_grad and len(labels) > 0 and counted():\n"
         "        raise ValueError('a planted\\x1b fault')\n    loss =")  # fmt: skip
    edit("focal.py", "import torch", "calls = []\n\n\ndef counted():\n    calls.append(1)\n"
         "    return len(calls) > 9\n\n\nimport torch")  # fmt: skip
    failed = run("train", "classify.yaml", trainer__output_dir="failed", watchdog__max_restarts=0)
    assert failed.code == 4
    where = next(
        number
        for number, line in enumerate(Path("focal.py").read_text().splitlines(), 1)
        if "raise Val" in line
    )
    output = " ".join((failed.out + failed.err).split())
    assert f"focal.py:{where}" in output
    assert "plugins.loss (focal) raised ValueError: a planted" in output
    assert "\x1b" not in failed.out + failed.err
    assert "raise ValueError('a planted" in Path("failed/logs/rank_0.log").read_text(encoding="utf-8")
    last = max(int(path.name) for path in Path("failed/checkpoints").glob("[0-9]*"))
    assert last % 4, "the last complete step was saved, and not only every fourth one"
    assert f"failed after step {last}" in failed.out


PLANTED = {
    "planted.py": """\
import importlib
import json
import random

import numpy as np
import torch
import torch.nn.functional as F


def from_numpy(ids, special, rng, context):
    chosen = (np.random.random(len(ids)) < 0.2) & ~special
    return np.where(chosen, context.mask_id, ids), np.where(chosen, ids, -100)


def in_order(ids, special, rng, context, seen=[]):
    seen.append(len(ids))
    chosen = (rng.random(len(ids)) < (0.1, 0.3)[len(seen) % 2]) & ~special
    return np.where(chosen, context.mask_id, ids), np.where(chosen, ids, -100)


def too_much(ids, special, rng, context):
    chosen = (rng.random(len(ids)) < 0.5) & ~special
    return np.where(chosen, context.mask_id, ids), np.where(chosen, ids, -100)


def of_special_tokens(ids, special, rng, context):
    chosen = rng.random(len(ids)) < 0.2
    return np.where(chosen, context.mask_id, ids), np.where(chosen, ids, -100)


def of_other_tokens(ids, special, rng, context):
    chosen = (rng.random(len(ids)) < 0.2) & ~special
    return np.where(chosen, context.mask_id, ids), np.where(chosen, np.roll(ids, 1), -100)


def too_short(ids, special, rng, context):
    return ids[1:], ids[1:]


def by_import(ids, special, rng, context):
    return importlib.import_module("unseen").spans(ids)


class Forgetful:
    def on_step(self, step, metrics): ...
    def state_dict(self): return {"seen": id(self)}
    def load_state_dict(self, state): ...


def factory():
    return Made()


class Made:
    def on_step(self, step, metrics):
        self.step = step


def shuffled(split):
    found = [{"text": str(number) * 9, "label": number % 2} for number in range(90)]
    random.shuffle(found)
    return found


def in_a_set(split):
    return [{"text": f"{word} " * 9} for word in {str(number) for number in range(90)}]


def generated(split):
    return ({"text": "a b c", "label": 0} for _ in range(90))


def drawn(logits, labels):
    return F.cross_entropy(F.dropout(logits, 0.1), labels, reduction="none")


def of_the_batch(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none") * labels.bincount()[labels]


def summed(logits, labels):
    return F.cross_entropy(logits, labels)


def infinite(logits, labels):
    return F.cross_entropy(logits, labels, reduction="none") * float("inf")


def detached(logits, labels):
    return F.cross_entropy(logits.detach(), labels, reduction="none")


def counts(logits, labels):
    return labels


def first(predictions, labels):
    return {"first": float(predictions[0, 0])}


def accuracy(predictions, labels):
    return {"accuracy": 1.0}


def vast(predictions, labels):
    return {"vast": 10**400}


def words(predictions, labels):
    return {"words": "many"}


def decoding(predictions, labels):
    return {"cost": json.loads("")}


def raising(predictions, labels):
    return {"share": labels.sum() / (len(labels) - len(labels))[0]}
""",
    "unseen.py": "def spans(ids):\n    return ids, ids\n",
}
RAISING = 1 + PLANTED["planted.py"].splitlines().index("def raising(predictions, labels):") + 1
PRETRAINING = {
    "masking=planted.py:from_numpy": "draws from the global generator of numpy.random",
    "masking=planted.py:in_order": "masks different tokens when",
    "masking=planted.py:of_special_tokens": "selects special tokens as targets",
    "masking=planted.py:of_other_tokens": "returned labels that are not the tokens of the text",
    "masking=planted.py:too_short": "returned inputs of shape",
    "masking=planted.py:by_import": "unseen.py is imported by a plug-in, but not by an import statement",
    "hooks=[planted.py:factory, planted.py:Forgetful]": (
        "Made.on_step changes self.step",
        "has a different state after load_state_dict",
    ),
    "dataset=planted.py:shuffled": "when called again (train)",
    "dataset=planted.py:generated": "returned generator for split train, not a sequence",
}
METRICS = ("first", "accuracy", "words", "raising", "decoding", "vast")
LABELLED = {
    "loss=planted.py:drawn": "draws from the global generator of torch",
    "loss=planted.py:of_the_batch": "depends on the other labels of a microbatch",
    "loss=planted.py:summed": "returned () for 48 labels, not a loss for each label",
    "loss=planted.py:counts": "returned losses of int64, not of floating point",
    "loss=planted.py:infinite": "is not finite",
    "loss=planted.py:detached": "has no gradient",
    f"metrics=[{', '.join(f'planted.py:{name}' for name in METRICS)}]": (
        "(first) returns different values in another order",
        "(accuracy) returned 'accuracy', which the run reports already",
        "(words) returned str as 'words', not a number",
        "(raising) raised TypeError: 'int' object is not subscriptable",
        f"planted.py:{RAISING}: plugins.metrics.3 (raising)",
        "(decoding) raised JSONDecodeError: Expecting value: line 1 column 1 (char 0) (in ",
        "json/decoder.py:",
        "(vast) returned as 'vast' an integer above 1.8e+308, the largest float",
    ),
}


@warm
@pytest.mark.parametrize("file", ["pretrain.yaml", "classify.yaml"])
def test_a_plugin_that_would_break_a_resume_is_refused_with_the_reason(file, tmp_path):
    for name, content in PLANTED.items():
        Path(name).write_text(content, encoding="utf-8")
    for planted, messages in (PRETRAINING if file == "pretrain.yaml" else LABELLED).items():
        values = [f"{name}={value}" for name, value in SMALL.items()]
        config = resolve_run(None, [file], [*values, f"plugins.{planted}"]).config
        failures = probe_plugins(Subject(config, tmp_path / "run", tmp_path)).failures
        output = "\n".join(each.message for each in failures)
        for message in [messages] if isinstance(messages, str) else messages:
            assert message in output, (planted, output)


@warm
def test_each_plugin_that_fails_its_tests_is_a_finding_of_the_preflight(run):
    Path("planted.py").write_text(PLANTED["planted.py"], encoding="utf-8")
    planted = {"plugins__masking": "planted.py:too_much", "plugins__hooks": "[planted.py:factory]"}
    refused = run("preflight", "pretrain.yaml", "--level", "host", **planted)
    assert refused.code == 1
    output = " ".join(refused.out.split())
    assert output.count("fail PLG002 failing-plugin") == 2
    assert re.search(r"failing-plugin: \S+planted.py:\d+: Made.on_step changes self.step", output)
    assert "of the tokens, but datacollator.mlm_probability is 20.0%" in output

    refused = run("preflight", "classify.yaml", "--level", "host", plugins__metrics="[planted.py:raising]")
    assert re.search(rf"hint: fix \S+planted.py:{RAISING}\n", refused.out)


def test_a_plugin_that_ends_its_process_is_named(run):
    Path("planted.py").write_text(
        "import os\n\ndef ending(ids, special, rng, context):\n    os.abort()\n", encoding="utf-8"
    )
    refused = run("preflight", "pretrain.yaml", "--level", "host", plugins__masking="planted.py:ending")
    assert refused.code == 3
    assert "killed by SIGABRT, while testing plugins.masking (planted.py:ending" in refused.out


def test_rows_in_the_order_of_a_set_differ_in_another_process(run):
    """Not forks of one interpreter, whose string hashes would be the same."""
    Path("planted.py").write_text(PLANTED["planted.py"], encoding="utf-8")
    refused = run("preflight", "pretrain.yaml", "--level", "host", plugins__dataset="planted.py:in_a_set")
    assert refused.code == 1
    assert "plugins.dataset returns different results in another process" in " ".join(refused.out.split())


@warm
def test_a_plugin_that_takes_long_is_noted_once_without_a_terminal(run, monkeypatch):
    Path("slow.py").write_text(
        "import time\n\ndef slow(split):\n    time.sleep(1.5)\n    raise ValueError('no rows')\n",
        encoding="utf-8",
    )
    monkeypatch.setattr(activity, "LONG_WAIT_S", 0.5)
    refused = run("preflight", "pretrain.yaml", "--level", "host", plugins__dataset="slow.py:slow")
    assert refused.code == 1
    note = "testing plugins.dataset (slow.py:slow, limit 540 s per call): still waiting after 0.5 s"
    assert " ".join(refused.err.split()).count(note) == 1, refused.err

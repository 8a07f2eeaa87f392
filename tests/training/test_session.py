"""A whole session in this process: what it writes, and that it writes it in the contract's words."""

import json
import math
import re
import time
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from neobert.errors import ProjectError
from neobert.receipt import read_receipt, write_receipt
from neobert.runfiles.checkpoint import folders
from neobert.runfiles.checkpoint.manifest import verify_checkpoint
from neobert.runfiles.phases import STOP_BY_ENV
from tests.refusals import refusal_of

TRAIN_FIELDS = [
    "step",
    "train/loss",
    "train/learning_rate",
    "train/grad_norm",
    "train/weight_norm",
    "train/tokens_per_sec",
    "train/tokens_total",
    "train/epoch",
    "perf/mfu",
    "perf/recompiles",
    "perf/kernel_fallbacks",
    "data/read_retries",
    "perf/data_wait_share",
    "perf/host_bound_share",
    "time/step_ms",
    "time/data_wait_ms",
    "memory/alloc_retries",
    "memory/out_of_memory",
    "memory/peak_percent",
]
EVAL_FIELDS = ["eval/loss", "eval/perplexity", "eval/accuracy", "time/evaluation_ms"]
BEAT_FIELDS = [
    "schema_version",
    "config_digest",
    "ts_utc",
    "boot_id",
    "boot_s",
    "seq",
    "rank",
    "phase",
    "phase_doing",
    "phase_done",
    "phase_total",
    "unguarded",
    "step",
    "last_progress_step",
    "last_progress_ts_utc",
    "phase_longest_s",
    "max_steps",
    "tokens_total",
    "tokens_per_second",
    "mfu",
    "loss",
    "learning_rate",
    "grad_norm",
    "gpu_mem_alloc_mib",
    "gpu_mem_alloc_gib",
    "gpu_mem_reserved_mib",
    "gpu_mem_reserved_gib",
    "gpu_mem_total_mib",
    "host_rss_mib",
    "gpu_mem_peak_percent",
    "attention_kernel",
    "compute_dtype",
    "recompiles",
    "kernel_fallbacks",
    "read_retries",
    "warnings",
    "warning_messages",
    "data_wait_ms",
    "data_wait_p50_ms",
    "data_wait_p95_ms",
    "eta_s",
    "nsa",
    "last_checkpoint_step",
    "last_checkpoint_age_s",
    "work_at_risk_min",
]


def names(folder):
    return {path.name for path in folder.iterdir()}


def test_a_fresh_run_leaves_what_the_contract_says(make_run, run, metrics, beats, outcome):
    run_dir = make_run(watchdog={"heartbeat_interval_s": 600})  # a slow machine gets no beats in between
    assert run(run_dir) == 0
    assert outcome(run_dir) == {"status": "finished", "exit_code": 0, "step": 12, "message": ""}
    assert names(run_dir / "checkpoints") == {"5", "10", "12", "latest"}
    assert (run_dir / "checkpoints" / "latest").readlink().name == "12"

    lines = metrics(run_dir)
    assert [line["step"] for line in lines] == [0, 3, 4, 6, 8, 9, 12]
    by_step = {line["step"]: line for line in lines}
    assert list(by_step[0]) == ["step", *EVAL_FIELDS]
    assert list(by_step[3]) == TRAIN_FIELDS
    assert list(by_step[4]) == ["step", *EVAL_FIELDS]
    assert list(by_step[12]) == [*TRAIN_FIELDS, *EVAL_FIELDS]
    assert all(line["perf/mfu"] is None for line in lines if "perf/mfu" in line)
    assert by_step[0]["eval/loss"] == pytest.approx(math.log(128), abs=0.2)
    assert all(row["eval/perplexity"] == math.exp(row["eval/loss"]) for row in lines if "eval/loss" in row)
    weights = load_file(run_dir / "checkpoints" / "12" / "model.safetensors").values()
    weight_norm = math.sqrt(sum(each.double().square().sum().item() for each in weights))
    assert by_step[12]["train/weight_norm"] == pytest.approx(weight_norm, rel=1e-5)
    assert by_step[12]["eval/loss"] < by_step[0]["eval/loss"] - 0.1

    seen = beats(run_dir)
    assert all(list(beat) == BEAT_FIELDS for beat in seen)
    assert [beat["seq"] for beat in seen] == list(range(len(seen)))
    assert (seen[0]["phase"], seen[-1]["phase"]) == ("start", "finished")
    assert {beat["phase"] for beat in seen} == {"start", "eval", "train", "save", "finished"}
    assert all(beat[name] is None for beat in seen for name in BEAT_FIELDS if name.startswith("gpu_"))
    assert (seen[0]["loss"], seen[0]["attention_kernel"]) == (None, None)
    assert seen[0]["last_checkpoint_step"] is None
    assert seen[-1]["loss"] == by_step[12]["train/loss"]
    assert 0 < seen[-1]["data_wait_p50_ms"] <= seen[-1]["data_wait_p95_ms"]
    assert (seen[-1]["last_checkpoint_step"], seen[-1]["eta_s"]) == (12, 0.0)
    assert (seen[-1]["compute_dtype"], seen[-1]["attention_kernel"]) == ("float32", "sdpa")
    later = next(beat for beat in reversed(seen) if (beat["step"], beat["phase"]) == (6, "train"))
    left_ms = 6 * by_step[6]["time/step_ms"] + 2 * by_step[4]["time/evaluation_ms"]
    assert later["eta_s"] == pytest.approx(left_ms / 1000), "evaluations at steps 8 and 12 are still to come"


def test_every_heartbeat_of_an_unguarded_run_says_why(make_run, run, beats):
    run_dir = make_run(trainer={"max_steps": 2})
    receipt = read_receipt(run_dir / "receipt.json")
    receipt = replace(receipt, verdict="fail", unguarded="a person's own words")
    write_receipt(receipt, run_dir / "receipt.json")
    assert run(run_dir) == 0
    assert {beat["unguarded"] for beat in beats(run_dir)} == {"a person's own words"}


def test_a_checkpoint_holds_weights_and_state_without_collisions(finished):
    folder = finished / "checkpoints" / "12"
    assert verify_checkpoint(folder).step == 12
    assert {"model.safetensors", "config.json", "modeling_neobert.py", "tokenizer.json"} <= names(folder)
    assert names(folder / "trainer_state") == {
        "optimizer.safetensors",
        "resolved.json",
        "rng_rank0.safetensors",
        "state.json",
    }
    weights, moments = (
        load_file(folder / "model.safetensors"),
        load_file(folder / "trainer_state" / "optimizer.safetensors"),
    )
    for name, weight in weights.items():
        assert moments[f"exp_avg/{name}"].shape == weight.shape
        assert moments[f"step/{name}"].item() == 12
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert not [path for path in files if path.suffix in {".bin", ".pt", ".pkl"}]
    assert {path.stat().st_mode & 0o777 for path in files} == {folder.stat().st_mode & 0o666}
    state = json.loads((folder / "trainer_state" / "state.json").read_text(encoding="utf-8"))
    assert (state["step"], state["row"], state["world_size"]) == (12, None, 1)
    assert state["cursor"]["epoch"] >= 0
    assert set(state["identity"]) == {"data fingerprint", "tokenizer digest"}


def test_a_complete_run_has_nothing_left_to_do(source, run, metrics, outcome):
    before = metrics(source), names(source / "checkpoints")
    assert run(source) == 0
    assert (metrics(source), names(source / "checkpoints")) == before
    assert outcome(source)["status"] == "finished"


def test_both_loss_paths_train_the_same(make_run, run, metrics):
    losses = []
    for name, masked_only in (("masked", True), ("full", False)):
        run_dir = make_run(name, trainer={"masked_logits_only_loss": masked_only})
        run(run_dir)
        losses.append([line.get("train/loss") or line["eval/loss"] for line in metrics(run_dir)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_steps_without_a_target_have_no_loss(make_run, run, metrics, caplog):
    caplog.set_level("INFO", logger="neobert")
    run_dir = make_run(datacollator={"mlm_probability": 1e-6})
    assert run(run_dir) == 0
    assert {line["train/loss"] for line in metrics(run_dir) if "train/loss" in line} == {None}
    assert "step 12/12  no target to predict" in caplog.text


def test_a_step_without_cuda_graphs_does_not_mark_them(make_run, run, monkeypatch):
    """The call imports Inductor: a second and 40 MiB in every trainer."""
    marks = []
    monkeypatch.setattr(torch.compiler, "cudagraph_mark_step_begin", lambda: marks.append(1))
    assert run(make_run(trainer={"max_steps": 1, "save_steps": 0, "eval_steps": 0})) == 0
    assert not marks


def test_text_that_cannot_be_masked_ends_the_run(make_run, run, outcome, tmp_path):
    """One document in a hundred has a token to predict: enough for preparation, nothing to learn from."""
    text = tmp_path / "special.jsonl"
    documents = ["ba", *(" ".join(["[MASK]", "[SEP]"] * 20) for _ in range(100))]
    text.write_text("\n".join(json.dumps({"text": each}) for each in documents), encoding="utf-8")
    dataset = {"path": str(text), "cache_dir": str(tmp_path), "eval_samples": None, "validation_split": None}
    run_dir = make_run(dataset=dataset, trainer={"eval_steps": 0})
    with pytest.raises(ProjectError, match=r"no target in the last .*\[DAT004\]") as caught:
        run(run_dir)
    assert caught.value.exit_code == outcome(run_dir)["exit_code"] == 93
    assert outcome(run_dir)["status"] == "failed"


def test_a_run_without_evaluation_text_has_no_evaluation(make_run, run, metrics, caplog):
    run_dir = make_run(dataset={"eval_samples": None})
    assert run(run_dir) == 0
    assert caplog.text.count("no evaluation: the text has no evaluation split") == 1
    assert [line["step"] for line in metrics(run_dir)] == [3, 6, 9, 12]
    assert all("eval/loss" not in line for line in metrics(run_dir))


def test_weights_of_another_run_start_a_fresh_schedule(make_run, run, metrics, source):
    folder = source / "checkpoints" / "12"
    run_dir = make_run("next", model={"pretrained_checkpoint": str(folder)})
    run(run_dir)
    lines = metrics(run_dir)
    assert lines[0]["eval/loss"] == pytest.approx(metrics(source)[-1]["eval/loss"], rel=1e-6)
    assert lines[1]["train/learning_rate"] == metrics(source)[1]["train/learning_rate"]


def test_weights_are_refused_by_a_model_that_computes_something_else(make_run, run, source):
    key, value = "norm_eps", 1e-3
    weights = str(source / "checkpoints" / "12")
    with pytest.raises(ProjectError, match=f"model.{key} is {value}") as caught:
        run(make_run("next", model={"pretrained_checkpoint": weights, key: value}))
    assert (caught.value.code, caught.value.place) == ("EXP005", f"model.{key}")
    sizes = {"hidden_size": 64, "num_hidden_layers": 3}
    with pytest.raises(
        ProjectError, match=r"model\.hidden_size is 64, model\.num_hidden_layers is 3"
    ) as caught:
        run(make_run("larger", model={"pretrained_checkpoint": weights, **sizes}))
    assert re.fullmatch(r"set model.hidden_size to \d+, model.num_hidden_layers to \d+", caught.value.hint)


def test_damaged_weights_start_no_run_and_do_not_matter_to_one_that_resumes(make_run, run, source):
    """They were trained on silently, or the run ended in NAN001 with the hint to lower the rate."""
    weights = source / "checkpoints" / "12" / "model.safetensors"
    model = {"pretrained_checkpoint": str(source / "checkpoints" / "12" / "model.safetensors")}
    run_dir = make_run("next", model=model, trainer={"max_steps": 4})
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-3] + bytes([intact[-3] ^ 0x40]) + intact[-2:])
    error = refusal_of(run, "CKP007", "the content of model.safetensors changed after the save", run_dir)
    assert error.place == str(weights.parent)
    weights.write_bytes(intact)
    assert run(run_dir) == 0
    weights.write_bytes(intact[:-1])
    make_run("next", model=model, trainer={"max_steps": 8})
    assert run(run_dir) == 0


def test_weights_are_not_gone_on_from_under_another_vocabulary(make_run, run, source, tmp_path):
    """A tokenizer that is trained from other text has the size of the first, and other words under it."""
    text = tmp_path / "other.jsonl"
    documents = [" ".join(f"{a}{b}" for b in "xyz") + " ba" for a in "qwvzj" for _ in range(60)]
    text.write_text("\n".join(json.dumps({"text": each}) for each in documents), encoding="utf-8")
    weights = {"pretrained_checkpoint": str(source / "checkpoints" / "12")}
    run_dir = make_run("next", model=weights, dataset={"path": str(text), "cache_dir": str(tmp_path)})
    error = refusal_of(run, "EXP005", "was trained with another tokenizer", run_dir)
    assert error.place == "tokenizer"
    assert str(source / "checkpoints" / "12") in error.hint
    own = {"path": str(source / "checkpoints" / "12"), "vocab_size": None}
    make_run("next", model=weights, tokenizer=own, dataset={"path": str(text), "cache_dir": str(tmp_path)})
    assert run(run_dir) == 0


@pytest.mark.parametrize(
    ("sections", "code"),
    [
        ({"model": {"vocab_size": 64}}, "MOD002"),
        ({"distributed": {"nproc_per_node": 2}}, "BUD002"),
        ({"trainer": {"resume_from_checkpoint": "elsewhere"}}, "CKP007"),
    ],
)
def test_a_run_that_cannot_be_is_refused(make_run, run, sections, code):
    run_dir = make_run(**sections)
    with pytest.raises(ProjectError) as error:
        run(run_dir)
    assert (error.value.code, error.value.exit_code) == (code, 1)
    assert error.value.hint
    assert not folders.checkpoint_steps(run_dir / "checkpoints")


def test_bf16_keeps_fp32_weights(make_run, run, beats):
    run_dir = make_run(trainer={"mixed_precision": "bf16", "max_steps": 3})
    run(run_dir)
    assert beats(run_dir)[-1]["compute_dtype"] == "bfloat16"
    weights = load_file(run_dir / "checkpoints" / "3" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.float32}


def test_a_job_that_is_about_to_end_leaves_a_checkpoint(
    make_run, run, outcome, exact, uninterrupted, monkeypatch
):
    run_dir = make_run()
    monkeypatch.setenv(STOP_BY_ENV, str(time.time() - 1))
    assert run(run_dir) == 75
    ended = outcome(run_dir)
    assert (ended["status"], ended["exit_code"]) == ("preempted", 75)
    assert folders.find_checkpoint(run_dir / "checkpoints", "auto")[1].step == ended["step"]
    monkeypatch.setenv(STOP_BY_ENV, str(time.time() + 3600))
    assert run(run_dir) == 0
    assert exact(run_dir) == uninterrupted

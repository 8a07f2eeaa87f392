"""The jobs of the small GLUE comparison: which can be known by now, what they cost, what they add up to."""

from __future__ import annotations

import argparse
import json

import glue_report
import glue_small
import pytest
import trial_runner

from neobert.evaluation.glue.tasks import TASKS

RATES = [1e-4, 5e-4]


@pytest.fixture
def data(tmp_path):
    """CoLA without a header, and RTE with pairs; 50 texts to train on."""
    for name in ("CoLA", "RTE"):
        (tmp_path / "glue" / name).mkdir(parents=True)
    for split, count in (("train", 50), ("dev", 8)):
        cola = "".join(f"gj04\t{number % 2}\t\ttext {number}\n" for number in range(count))
        rte = "".join(f"{number}\ttext {number}\tpair {number}\tentailment\n" for number in range(count))
        (tmp_path / "glue" / "CoLA" / f"{split}.tsv").write_text(cola)
        header = "index\tsentence1\tsentence2\tlabel\n"
        (tmp_path / "glue" / "RTE" / f"{split}.tsv").write_text(header + rte)
    return tmp_path


@pytest.fixture
def chosen(tmp_path, data):
    results = tmp_path / "results"
    results.mkdir()
    return argparse.Namespace(
        work=tmp_path / "work", results=results, data=data, tasks=["cola", "rte"], rates=RATES, pairs=None,
        per_gpu=2, pretraining=300.0, size="tiny", batch_rows=4, pace_steps=3,
    )  # fmt: skip


@pytest.fixture
def files(chosen):
    return glue_small.prepare(chosen.data / "glue", chosen.results / "glue", chosen.tasks, None)


def ended(chosen, name, **values):
    line = {"seconds": 10.0, "loss": 2.0, **values}
    (chosen.results / f"{name}.jsonl").write_text(json.dumps(line) + "\n")


def pretrained(chosen, *sides):
    for side in sides:
        ended(chosen, f"pretrain-{side}")


def scored(chosen, arm, task, rate, seed, score):
    metrics = dict.fromkeys(TASKS[task].metrics, score)
    name = glue_report.job_name(arm, task, rate, seed)
    ended(chosen, name, metrics=metrics, seed=seed, starts_from="pretrained", step=3)


def names(chosen, files):
    return [job.name for job in glue_small.jobs(chosen, files)]


def test_a_sample_is_the_same_in_every_call_and_is_marked(chosen):
    read = chosen.results / "glue" / "data" / "rte" / "train.jsonl"
    contents = []
    for _ in range(2):
        files = glue_small.prepare(chosen.data / "glue", chosen.results / "glue", ["rte"], 20)
        contents.append(read.read_text())
    rows = [json.loads(line) for line in contents[0].splitlines()]
    assert contents[0] == contents[1]
    assert len({row["pair"] for row in rows}) == files["rte"]["files"]["train"]["rows"] == 20
    assert [int(row["pair"].split()[1]) for row in rows] != list(range(20))
    pretrained(chosen, "ours")
    for rate in RATES:
        scored(chosen, "ours", "rte", rate, 0, 0.5)
    (reason, _) = glue_report.arm_of(chosen.results, "ours", RATES, files)["tasks"]["rte"]["not_comparable"]
    assert reason.startswith("training set of 20 texts, the published one has 2,490")


def test_jobs_of_other_settings_are_not_continued(chosen):
    chosen.size, chosen.rows = "tiny", None
    assert glue_small.other_settings(chosen) == glue_small.other_settings(chosen) == []
    chosen.rows, chosen.batch_rows = 20, 8
    assert glue_small.other_settings(chosen) == ["--batch-rows", "--rows"]


def test_jobs_wait_for_their_checkpoint(chosen, files):
    assert names(chosen, files) == []
    pretrained(chosen, "peer")
    assert {name.partition("-")[0] for name in names(chosen, files)} == {"peer"}
    pretrained(chosen, "ours")
    assert {name.partition("-")[0] for name in names(chosen, files)} == {"ours", "random", "peer"}


def test_other_seeds_wait_for_the_best_rate(chosen, files):
    pretrained(chosen, "ours")
    scored(chosen, "ours", "cola", RATES[0], 0, 0.2)
    of_cola = [name for name in names(chosen, files) if name.startswith("ours-cola")]
    assert sorted(of_cola) == ["ours-cola-lr-0.0001-seed-0", "ours-cola-lr-0.0005-seed-0"]
    scored(chosen, "ours", "cola", RATES[1], 0, 0.3)
    of_cola = [name for name in names(chosen, files) if name.startswith("ours-cola")]
    assert sorted(of_cola)[1:] == [f"ours-cola-lr-0.0005-seed-{seed}" for seed in range(3)]


def test_a_single_rate_is_not_waited_for(chosen, files):
    chosen.rates = RATES[:1]
    pretrained(chosen, "ours")
    of_cola = [name for name in names(chosen, files) if name.startswith("ours-cola")]
    assert sorted(of_cola) == [f"ours-cola-lr-0.0001-seed-{seed}" for seed in range(3)]


@pytest.mark.parametrize(
    ("scores", "best"), [((0.2, 0.3), 1), ((0.3, 0.2), 0), ((None, -0.5), 1), ((None, None), 0)]
)
def test_a_rate_without_a_score_is_never_best(chosen, scores, best):
    for rate, score in zip(RATES, scores, strict=True):
        scored(chosen, "ours", "cola", rate, 0, score)
    assert glue_report.best_rate(chosen.results, "ours", "cola", RATES) == RATES[best]


def test_the_longest_come_first_and_an_ended_one_tells_the_price(chosen, files):
    pretrained(chosen, "ours")
    prices = [job.most_s for job in glue_small.jobs(chosen, files)]
    assert prices == sorted(prices, reverse=True)
    assert glue_small.jobs(chosen, files)[0].name.endswith("-blimp")
    scored(chosen, "ours", "rte", RATES[0], 0, 0.5)
    ended(chosen, "ours-rte-lr-0.0001-seed-0", seconds=400.0, metrics={"accuracy": 0.5})
    first = glue_small.jobs(chosen, files)[0]
    assert (first.name[:8], first.most_s) == ("ours-rte", pytest.approx(480.0))


def test_all_tasks_get_the_first_seed_before_any_gets_another(chosen, files):
    chosen.rates = RATES[:1]
    pretrained(chosen, "ours", "peer")
    for arm in glue_report.ARMS:
        for task in chosen.tasks:
            scored(chosen, arm, task, RATES[0], 0, 0.5)
    ended(chosen, "ours-rte-lr-0.0001-seed-0", seconds=400.0, metrics={"accuracy": 0.5})
    found = names(chosen, files)
    seeds = [int(name[-1]) for name in found if not name.endswith("-blimp")]
    assert seeds == [0] * 6 + [1] * 6 + [2] * 6
    assert found.index("ours-rte-lr-0.0001-seed-1") < found.index("ours-cola-lr-0.0001-seed-1")


@pytest.mark.parametrize(("per_gpu", "step_s"), [(1, 0.03), (4, 0.03), (8, 0.06)])
def test_more_jobs_than_a_gpu_has_time_for_take_longer(per_gpu, step_s):
    assert glue_small.price("cola", 3_200, per_gpu) == pytest.approx(30 + step_s * 10 * 100)


def test_a_finished_pretraining_without_its_model_is_found(chosen):
    pretrained(chosen, "ours", "peer")
    for arm in ("ours", "peer"):
        folder = glue_small.model(chosen, arm)
        folder.mkdir(parents=True)
        (folder / "config.json").write_text("{}")
    assert glue_small.lost_models(chosen) == ["pretrain-ours"]


@pytest.fixture
def begun(chosen, monkeypatch):
    """Names of the started trials, by call. `begun.fails`: the number of failures by name."""

    class Begun(list):
        def __init__(self):
            super().__init__()
            self.fails = {}

    begun = Begun()

    def run_missing(wanted, _chosen, per_gpu):
        names = [trial.name for trial in trial_runner.missing(wanted(), chosen.results)]
        begun.append((per_gpu, names))
        failed = [name for name in names if begun.fails.get(name, 0) > 0]
        for name in names:
            if name in failed:
                begun.fails[name] -= 1
            else:
                ended(chosen, name, metrics={"mcc": 0.5, "accuracy": 0.5})
        if failed:
            raise trial_runner.TrialsFailed(failed)

    monkeypatch.setattr(trial_runner, "run_missing", run_missing)
    return begun


def test_a_pretraining_that_fails_twice_leaves_the_other_side_to_be_fine_tuned(chosen, files, begun):
    begun.fails = {"pretrain-peer": 2}
    reports = []
    with pytest.raises(SystemExit, match=r"^failed: pretrain-peer$"):
        glue_small.run_all(chosen, files, lambda: reports.append(1))
    assert begun[:2] == [(2, ["pretrain-ours", "pretrain-peer"]), (2, ["pretrain-peer"])]
    (per_gpu, of_ours) = begun[2]
    assert (per_gpu, len(begun), reports) == (chosen.per_gpu, 3, [1])
    assert {name.partition("-")[0] for name in of_ours} == {"ours", "random"}


def test_what_failed_once_runs_again(chosen, files, begun, capsys):
    begun.fails = {"pretrain-ours": 1, "peer-blimp": 1}
    glue_small.run_all(chosen, files, lambda: None)
    assert begun[1] == (2, ["pretrain-ours"])
    assert "peer-blimp" in begun[3][1]
    assert capsys.readouterr().out.splitlines() == [
        "failed: pretrain-ours: once more", "failed: peer-blimp: once more",
    ]  # fmt: skip


def test_the_price_list_counts_every_run(chosen, files, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    lines = list(glue_small.price_list(chosen, files))
    one = glue_small.price("cola", 50, chosen.per_gpu)
    assert one == pytest.approx(30 + 0.03 * 10 * 2)
    assert lines[0] == "pretraining: 2 x 390 s, 390 s together"
    assert lines[2] == f"cola: 12 x {one:.0f} s at most, 50 rows"
    total = 390 + (3 * 120 + 24 * one) / 4
    assert lines[-1] == f"in all {total:.0f} s at most with 4 jobs at a time"


def test_every_arm_has_a_model_of_its_own(chosen, files):
    pretrained(chosen, "ours", "peer")
    commands = {job.name: job.command for job in glue_small.jobs(chosen, files)}
    folders = [command[command.index("--folder") + 1] for command in commands.values()]
    assert len(set(folders)) == len(folders)
    for arm in glue_report.ARMS:
        folder = str(chosen.results / "models" / arm)
        assert commands[f"{arm}-blimp"][2] == commands[f"{arm}-cola-lr-0.0001-seed-0"][2] == folder


def scored_arm(chosen, arm, seeds_of, score):
    for task, seeds in seeds_of.items():
        for seed in seeds:
            scored(chosen, arm, task, RATES[0], seed, score + 0.01 * seed)


def test_a_margin_compares_the_tasks_and_seeds_that_both_arms_have(chosen, files):
    """A session that ends early leaves one arm with more tasks, whose mean says nothing about the other's."""
    chosen.rates = RATES[:1]
    scored_arm(chosen, "ours", {"cola": range(3), "rte": range(2)}, 0.7)
    scored_arm(chosen, "peer", {"cola": range(2)}, 0.4)

    def found():
        table = glue_report.report(chosen.results, chosen.results, chosen.rates, files)
        measurement = json.loads((chosen.results / "glue-small-cola-rte.json").read_text())
        return table, measurement["value"], measurement["detail"]["margins"]

    table, value, margins = found()
    assert value == pytest.approx(30.0)
    assert margins["random"] == {"all": None, "tasks": {"cola": None, "rte": None}}
    assert margins["peer"]["tasks"]["rte"] is None
    assert margins["peer"]["all"]["interval"] is None
    assert (margins["peer"]["all"]["tasks"], margins["peer"]["all"]["seeds"]) == (["cola"], [0, 1])
    assert "+30.0 (2 seeds)" in table
    scored(chosen, "peer", "cola", RATES[0], 2, 0.40)
    table, value, margins = found()
    assert value == pytest.approx(100 * (0.3 + 0.3 + 0.32) / 3, abs=0.01)
    low, high = margins["peer"]["tasks"]["cola"]["interval"]
    assert (low + high) / 2 == pytest.approx(margins["peer"]["tasks"]["cola"]["points"])
    assert high - low == pytest.approx(2 * 4.303 * 100 * 0.02 / 3, rel=1e-3)
    assert f"({low:+.1f} to {high:+.1f})" in table


def test_a_sample_is_named_whichever_arm_has_it(chosen, files):
    scored(chosen, "peer", "cola", RATES[0], 0, 0.5)
    table = glue_report.report(chosen.results, None, RATES[:1], files)
    assert "cola: not comparable with published scores: training set of 50 texts" in table


def test_the_report_names_what_is_missing(chosen, files):
    pretrained(chosen, "ours", "peer")
    scores = {"ours": 0.6, "random": 0.4, "peer": 0.5}
    for arm, score in scores.items():
        ended(chosen, f"{arm}-blimp", accuracy=score)
        for task in chosen.tasks:
            scored(chosen, arm, task, RATES[1], 0, score - 0.1)
            for seed in range(3):
                scored(chosen, arm, task, RATES[0], seed, score + 0.01 * seed)
    last = chosen.results / "peer-rte-lr-0.0001-seed-2.jsonl"
    content = last.read_text()
    last.unlink()

    tables = []

    def written():
        tables.append(glue_report.report(chosen.results, chosen.results, RATES, files))
        return json.loads((chosen.results / "glue-small-cola-rte.json").read_text())

    partial = written()
    assert partial["detail"]["missing"] == ["peer, rte: 2 of 3 seeds"]
    assert partial["is_complete"] is False
    last.write_text(content)
    whole = written()
    assert (whole["value"], whole["target"], whole["detail"]["missing"]) == (10.0, 0.0, [])
    assert "is_complete" not in whole
    cola = whole["detail"]["arms"]["random"]["tasks"]["cola"]
    assert cola["score"]["mean"] == pytest.approx(0.41)
    assert cola["score"]["std"] == pytest.approx(0.01)
    assert (cola["rate"], cola["first_seed_by_rate"]["0.0005"]) == (RATES[0], {"mcc": pytest.approx(0.3)})
    assert "61.0 ± 1.0" in tables[-1]


def test_the_figure_of_all_tasks_has_its_name_in_any_order():
    names = list(glue_report.TASK_NAMES)
    assert glue_report.figure(names) == glue_report.figure(reversed(names)) == "glue-small"
    assert glue_report.figure(["sst2"]) == "glue-small-sst2"

"""`train --search`: the space, what is checked before the first trial, and which trials are trained."""

import json
import math
import signal
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from launcher.commands.sweep import make_candidate
from launcher.commands.train import TrainRequest
from launcher.run import study as studies
from launcher.run.study import CHOICE, FILE, SearchParameter, Study, corners, parse_space, values_in_space
from launcher.rundir.directory import run_directory
from neobert.config import to_dict
from neobert.errors import ProjectError

pytestmark = pytest.mark.skipif(find_spec("optuna") is None, reason="needs optuna")

TRAIN = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=found")
RATE = "optimizer.lr=log(1e-4,3e-2)"
SEARCH = (*TRAIN, "--search", RATE)
JOURNAL = Path("found") / FILE
SPACE = [
    SearchParameter("optimizer.lr", "log", ("1e-4", "3e-2")),
    SearchParameter("seed", CHOICE, ("1", "2")),
]
BEST = 2e-3
"""Rate at which the planted loss is lowest."""


@pytest.mark.parametrize(
    ("argument", "expected"),
    [
        ("optimizer.lr=log(1e-4, 3e-3)", SearchParameter("optimizer.lr", "log", ("1e-4", "3e-3"))),
        ("datacollator.mlm_probability=uniform(0.1,0.4)",
         SearchParameter("datacollator.mlm_probability", "uniform", ("0.1", "0.4"))),
        ("scheduler.warmup_steps=int(10,50)", SearchParameter("scheduler.warmup_steps", "int", ("10", "50"))),
        ("optimizer.name=adamw,muon", SearchParameter("optimizer.name", CHOICE, ("adamw", "muon"))),
        ("optimizer.betas=[0.9, 0.95],[0.9, 0.98]",
         SearchParameter("optimizer.betas", CHOICE, ("[0.9, 0.95]", "[0.9, 0.98]"))),
    ],
)  # fmt: skip
def test_range_or_choices_of_a_key(argument, expected):
    assert parse_space([argument]) == [expected]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["optimizer.lr"], "the key or its values are missing"),
        (["optimizer.lr=1e-3"], "neither a range nor a list of values"),
        (["optimizer.lr=exp(1,2)"], "neither a range nor a list of values"),
        (["optimizer.lr=log(0,1)"], "must start above 0"),
        (["optimizer.lr=log(1,0.1)"], "the lower one first"),
        (["optimizer.lr=uniform(nan,1)"], "the lower one first"),
        (["optimizer.lr=log(a,b)"], "the ends of the range are not numbers"),
        (["scheduler.warmup_steps=int(1.5,3)"], "the ends of the range are not integers"),
        ([RATE, RATE], "swept twice"),
        (["trainer.output_dir=a,b"], "set by the sweep"),
    ],
)
def test_what_names_no_space_is_refused(arguments, words):
    with pytest.raises(ProjectError, match=words):
        parse_space(arguments)


def test_corners_have_both_ends_and_every_choice():
    assert [point.overrides for point in corners(SPACE)] == [
        (f"optimizer.lr={rate}", f"seed={seed}") for rate in ("1e-4", "3e-2") for seed in (1, 2)
    ]


@pytest.mark.parametrize(
    ("own", "values"),
    [
        ({"optimizer.lr": 1e-3, "seed": 2}, {"optimizer.lr": 1e-3, "seed": "2"}),
        ({"optimizer.lr": 1e-3, "seed": 3}, None),
        ({"optimizer.lr": 1.0, "seed": 2}, None),
        ({"optimizer.lr": None, "seed": 2}, None),
    ],
)
def test_values_of_the_run_file_are_a_trial_if_they_are_in_the_space(own, values):
    assert values_in_space(SPACE, own, {("seed", "1"): 1, ("seed", "2"): 2}) == values


def open_study(path: Path, metric: str = "eval/loss") -> Study:
    return Study(path, SPACE, metric, is_higher_better=False, seed=7)


def test_tasks_of_an_array_share_a_journal(tmp_path, monkeypatch):
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "1")
    first = open_study(tmp_path / FILE)
    mine = first.ask()
    monkeypatch.setenv("SLURM_ARRAY_TASK_ID", "2")
    second = open_study(tmp_path / FILE)
    other = second.ask()
    assert (mine.number, other.number) == (1, 2)
    assert mine.values != other.values
    assert [each.number for each in second.unfinished_trials()] == [2], "task 1 may still train trial 1"
    second.tell(other, 1.5)
    assert [(each.state, each.value) for each in first.trials()] == [("running", None), ("complete", 1.5)]


def test_tasks_that_ask_at_the_same_moment_get_other_values(tmp_path, monkeypatch):
    requested = {}
    for task in ("0", "1"):
        monkeypatch.setenv("SLURM_ARRAY_TASK_ID", task)
        monkeypatch.setenv("SLURM_ARRAY_TASK_MIN", "0")
        study = open_study(tmp_path / task)
        requested[study.is_first_task] = study.ask().values["optimizer.lr"]
    assert requested[True] != requested[False]


def test_no_task_trains_more_than_the_trials(command, monkeypatch):
    real, trained = Study.ask, list[TrainRequest]()

    def second(study: Study) -> studies.Trial:
        real(study)  # by another task, at the same moment
        return real(study)

    monkeypatch.setattr(Study, "ask", second)
    monkeypatch.setattr(
        "launcher.commands.sweep_runs.train_point", lambda request, _: trained.append(request)
    )
    assert command(*SEARCH, "--trials", "1").code == 0
    assert trained == []


LINE = '{"op_code":5,"worker_id":"w","trial_id":0,"param_name":"optimizer.lr","param_value_internal":%s'


@pytest.mark.parametrize(
    "line",
    [
        "\x1b[31mno json\n",
        '{"op_code":99,"worker_id":"w"}\n',
        "[]\n",
        LINE % '5.0,"distribution":"{\\"name\\": \\"FloatDistribution\\", \\"attributes\\": '
        '{\\"low\\": 1.0, \\"high\\": 9.0, \\"log\\": false, \\"step\\": null}}"}\n',
    ],
)
def test_a_damaged_journal_is_one_sentence(line, tmp_path):
    open_study(tmp_path / FILE).ask()
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    kept = [each for each in lines if '"param_name"' not in each]
    (tmp_path / FILE).write_text("".join(kept) + line)
    with pytest.raises(
        ProjectError, match=r"the journal of the search is damaged: reading it raised \w+"
    ) as raised:
        open_study(tmp_path / FILE).trials()
    assert line.strip() not in raised.value.message


def test_a_line_that_a_crash_cut_short_is_removed(tmp_path):
    study = open_study(tmp_path / FILE)
    requested = study.ask()
    with (tmp_path / FILE).open("a") as journal:
        journal.write('{"op_code":6,"wor')
    study = open_study(tmp_path / FILE)
    study.tell(requested, 1.5)
    assert [each.value for each in open_study(tmp_path / FILE).trials()] == [1.5]


def test_another_search_in_the_same_folder_is_refused(tmp_path):
    open_study(tmp_path / FILE)
    with pytest.raises(ProjectError, match="a search with different --search or --metric options"):
        open_study(tmp_path / FILE, "eval/accuracy")


def test_without_optuna_the_command_that_installs_it(command, monkeypatch):
    monkeypatch.setattr(studies, "find_spec", lambda name: None)
    command(*SEARCH).refused(2, "optuna is not installed", "= hint: pip install 'optuna>=5'")
    assert not Path("found").exists()


def test_a_search_is_listed_and_nothing_is_written(command):
    price = ("--set", "guard.price_per_gpu_hour=3600", "--trials", "10")
    answer = command(*SEARCH, "--search", "optimizer.name=adamw,lion", *price, "--dry-run").passed()
    head, *ends, total = answer.out.splitlines()
    assert head.split() == ["point", "tokens", "time", "memory", "cost"]
    assert [each.split()[:2] for each in ends] == [
        [f"lr={rate}", f"name={name}"] for rate in ("1e-4", "3e-2") for name in ("adamw", "lion")
    ]
    cost = max(float(each.split()[-1].replace(",", "")) for each in ends)
    assert total.startswith("10 trials between these corners: at most ")
    assert float(total.rpartition(" ")[2].replace(",", "")) == pytest.approx(10 * cost, abs=0.1)
    assert not Path("found").exists()


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (("--search", "model.num_hidden_layers=int(2,4)"), 1, "unequal numbers of parameters"),
        (("--search", "trainer.max_steps=int(600,700)"), 1, "unequal numbers of tokens"),
        (("--search", "scheduler.warmup_steps=int(20,9000)"), 1, "a point failed its checks"),
        (("--search", RATE, "--metric", "eval/none"), 2, "is not a metric of this run"),
        (("--search", RATE, "--sweep", "seed=1,2"), 2, "are both given"),
        (("--search", RATE, "--point", "0"), 2, "is given without --sweep"),
        (("--search", RATE, "--receipt", "receipt.json"), 2, "a receipt covers one run"),
        (("--search", RATE, "--collect"), 1, "no trial of this search was started"),
        (("--trials", "5"), 2, "is given without --search"),
        (("--sweep", "seed=0,1", "--receipt", "receipt.json"), 2, "a receipt covers one run"),
        (("--sweep", "seed=0,1", "--parallel", "2", "--point", "0"), 2, "--point trains a single point"),
        (("--sweep", "seed=0,1", "--parallel", "2", "--master-port", "9"), 2, "--parallel starts several"),
        (("--allow-unequal-tokens",), 2, "is given without --sweep"),
        (("--parallel", "2"), 2, "is given without --sweep"),
    ],
)
def test_sweeps_and_searches_that_are_refused(options, code, words, command):
    command(*TRAIN, *options).refused(code, words)
    assert not Path("found").exists()


def planted(request: TrainRequest, output_format: str) -> int:
    """Pretend to train: the loss depends on the rate alone."""
    run = request.selection.resolve()
    folder, loss = run_directory(run), abs(math.log10(run.config.optimizer.lr / BEST))
    folder.mkdir(parents=True)
    (folder / "resolved.json").write_text(json.dumps(to_dict(run.config)), "utf-8")
    (folder / "manifest.json").write_text("{}", "utf-8")
    (folder / "metrics.jsonl").write_text(json.dumps({"step": 700, "eval/loss": loss}) + "\n", "utf-8")
    (folder / "outcome.json").write_text('{"status": "finished", "exit_code": 0, "step": 700}', "utf-8")
    return 0


def trials_of(answer: Any) -> list[tuple[str, float]]:
    points = json.loads(Path("found/sweep.json").read_text(encoding="utf-8"))["points"]
    assert answer.json["points"] == points
    return [(each["overrides"], each["result"]["last_eval_loss"]) for each in points]


def test_a_planted_optimum_is_found_and_a_stopped_search_continues_without_repeating_a_trial(
    command, monkeypatch
):
    trained: list[str] = []

    def until_seventh(request: TrainRequest, output_format: str) -> int:
        if len(trained) == 7:
            raise KeyboardInterrupt
        trained.append(run_directory(request.selection.resolve()).name)
        return planted(request, output_format)

    search = (*SEARCH, "--trials", "20", "--output-format", "json")
    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", until_seventh)
    assert command(*search).code == 130
    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", planted)  # fails in a folder that exists
    answer = command(*search).passed()
    continued = trials_of(answer)
    assert trained == [f"trial-{number}" for number in range(1, 8)]
    assert len(continued) == len({str(overrides) for overrides, _ in continued}) == 20
    assert continued[0][0] == ["optimizer.lr=0.002"], "the profile's own rate is the first trial"
    assert min(loss for _, loss in continued[1:]) < 0.05, "within 12 % of the best rate"

    report = command("report", "found")
    assert (report.code, report.out[-14:]) == (0, "/compare.html\n"), "all trials on one page"
    again = command(*search)
    assert (again.code, trials_of(again)) == (0, continued), "nothing is left to train"
    Path("found").rename("stopped")
    assert trials_of(command(*search)) == continued, "as if it had never been stopped"


def test_a_refused_trial_costs_nothing_and_an_equal_one_is_not_trained_again(command, monkeypatch):
    trained: list[int] = []

    def once(request: TrainRequest, output_format: str) -> int:
        run = request.selection.resolve()
        if run_directory(run).exists():
            return 0
        trained.append(run.config.model.num_attention_heads)
        return planted(request, output_format)

    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", once)
    answer = command(*TRAIN, "--search", "model.num_attention_heads=int(4,6)", "--trials", "8").passed()
    assert "trial failed its checks" in answer.err, "5 heads do not divide the hidden size"
    assert sorted(trained) == [4, 6]
    assert answer.out.count("num_attention_heads=5") == answer.out.count("not run") > 0
    assert answer.out.count("finished") + answer.out.count("not run") == 8


def test_a_trial_without_a_valid_config_is_refused_and_left_alone(command, monkeypatch):
    refused = ProjectError("CFG003", "not a value")

    def invalid(selection: Any, point: Any, base: Path) -> Any:
        if "trial-2" in point.label:
            raise refused
        return make_candidate(selection, point, base)

    monkeypatch.setattr("launcher.commands.sweep_search.make_candidate", invalid)
    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", planted)
    for trials in (3, 4):
        answer = command(*SEARCH, "--trials", str(trials), "--output-format", "json").passed()
        trained = [each["point"][:7] for each in answer.json["points"]]
        assert trained == ["trial-1", "trial-3", "trial-4"][: trials - 1]


def test_a_trial_that_an_interrupt_left_without_values_is_not_trained(command, monkeypatch):
    def interrupted(request: TrainRequest, output_format: str) -> int:
        raise KeyboardInterrupt

    search = (*SEARCH, "--search", "seed=1,2,3", "--trials", "2", "--output-format", "json")
    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", interrupted)
    assert command(*search).code == 130
    lines = JOURNAL.read_text().splitlines(keepends=True)
    JOURNAL.write_text("".join(each for each in lines if '"param_name":"seed"' not in each))
    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", planted)
    answer = command(*search).passed()
    assert [each["point"][:7] for each in answer.json["points"]] == ["trial-2"]


def test_a_search_ends_if_the_machine_refuses_its_trials(command, monkeypatch):
    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", lambda request, output_format: 1)
    answer = command(*SEARCH)
    assert (answer.code, answer.out.count("not run")) == (1, 3)
    assert "3 trials in a row were refused: fix the cause" in answer.err


@pytest.mark.child
def test_a_trial_that_fails_does_not_end_a_search(launch):
    answer = launch(*SEARCH, "--trials", "2", "-q", fake="refuse")
    assert (answer.code, answer.out.count(" failed ")) == (93, 2), "no trial has a result"
    states = [line for line in JOURNAL.read_text().splitlines() if '"state":3' in line]
    assert len(states) == 2
    collected = launch(*SEARCH, "--collect", fake="crash")
    assert (collected.code, collected.out.count(" failed ")) == (1, 2)


@pytest.mark.e2e
def test_a_killed_search_continues_with_the_trial_that_it_left(start_child, run_child):
    child = start_child(*SEARCH, "--trials", "2", fake="stop")
    while not Path("found/trial-1/ready_0").exists():
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGKILL)
    child.communicate(timeout=60)
    answer = run_child(*SEARCH, "--trials", "2", "--output-format", "json", fake="finish").passed()
    assert [each["result"]["status"] for each in answer.json["points"]] == ["finished"] * 2
    assert sorted(path.name for path in Path("found").glob("trial-*")) == ["trial-1", "trial-2"]

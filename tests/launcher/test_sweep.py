"""`train --sweep`: the points, what is checked before the first, and what becomes of them."""

import json
import re
import shutil
import signal
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from launcher.commands.selection import Selection
from launcher.commands.sweep import changed_settings, make_candidate
from launcher.commands.sweep_results import PointResult, results_table
from launcher.run.summary import Summary
from launcher.run.sweep_points import Axis, Point, expand, parse_axes
from neobert.config import to_dict
from neobert.errors import ProjectError
from profiles.registry import ResolvedRun, resolve_run

TRAIN = ("train", "-p", "cpu-demo", "--set", "trainer.output_dir=sweep")
AUTO = "trainer.resume_from_checkpoint=auto"
SWEEP = (*TRAIN, "--sweep", "optimizer.lr=1e-3,2e-3")
VALUES = st.lists(
    st.from_regex(r"[a-z0-9/. ]{1,6}", fullmatch=True).map(str.strip).filter(bool),
    min_size=1,
    max_size=4,
    unique=True,
)


@pytest.mark.parametrize(
    ("argument", "values"),
    [
        ("seed=0:3:1", ("0", "1", "2")),
        ("seed=3:0:-1", ("3", "2", "1")),
        ("optimizer.lr=0.1:0.4:0.1", ("0.1", "0.2", "0.3")),
        ("seed=5", ("5",)),
        ("optimizer.betas=[0.9, 0.95],[0.9, 0.98]", ("[0.9, 0.95]", "[0.9, 0.98]")),
        ("dataset.path='a,b',c", ("'a,b'", "c")),
        ("model.init=published,scaled", ("published", "scaled")),
        ("optimizer.betas=[0.9,0.95]", ("[0.9,0.95]",)),
    ],
)
def test_values_of_a_key(argument, values):
    assert parse_axes([argument]) == [Axis(argument.partition("=")[0], values)]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["seed"], "the key or its values are missing"),
        (["seed=1,,2"], "empty or a repeated value"),
        (["optimizer.lr=1e-4,3e-4,0.0001"], "empty or a repeated value"),
        (["optimizer.lr=[1e-4,3e-4]"], "the values are in brackets"),
        (["optimizer.lr=[1e-4,3e-4],[2]"], "pass --sweep optimizer.lr=1e-4,3e-4,2"),
        (["optimizer.lr=log(1e-4,1e-2)"], "no range to search"),
        (["seed=3:1"], "the range is empty"),
        (["seed=0:1:0"], "the range is empty"),
        (["seed=a:b"], "not a range of numbers"),
        (["seed=1,2", "seed=3,4"], "swept twice"),
        (["trainer.output_dir=a,b"], "set by the sweep"),
        (["seed=0:40", "optimizer.lr=0.1:4:0.1"], "more than 1,000 points"),
    ],
)
def test_what_names_no_sweep_is_refused(arguments, words):
    with pytest.raises(ProjectError, match=words):
        expand(parse_axes(arguments))


@given(st.integers(-50, 50), st.integers(1, 60), st.sampled_from(["1", "2", "0.5", "0.1"]))
def test_a_range_counts_as_pythons_does(start, length, step):
    [axis] = parse_axes([f"seed={start}:{start + length}:{step}"])
    expected = [Decimal(start) + index * Decimal(step) for index in range(len(axis.values))]
    assert [Decimal(value) for value in axis.values] == expected
    assert expected[-1] < start + length <= expected[-1] + Decimal(step)


@given(VALUES, VALUES)
def test_every_combination_once_each_in_a_folder_of_its_own(first, second):
    points = expand([Axis("optimizer.lr", tuple(first)), Axis("scheduler.lr", tuple(second))])
    assert len({point.overrides for point in points}) == len(points) == len(first) * len(second)
    assert len({point.folder for point in points}) == len(points)
    assert all(Path(point.folder).name == point.folder for point in points)


def test_a_sweep_is_listed_and_nothing_is_written(command):
    answer = command(*SWEEP, "--sweep", "seed=0:2", "--dry-run").passed()
    assert answer.out.splitlines()[0].split() == ["point", "tokens", "time", "memory", "cost"]
    assert [line.split()[:2] for line in answer.out.splitlines()[1:5]] == [
        [f"lr={rate}", f"seed={seed}"] for rate in ("1e-3", "2e-3") for seed in (0, 1)
    ]
    assert not Path("sweep").exists()


def test_a_finished_point_is_listed_as_finished(command):
    folder = Path("sweep/lr=1e-3").absolute()
    folder.mkdir(parents=True)
    run = resolve_run("cpu-demo", (), ("optimizer.lr=1e-3", f"trainer.output_dir={folder}"))
    (folder / "resolved.json").write_text(json.dumps(to_dict(run.config)), encoding="utf-8")
    (folder / "outcome.json").write_text('{"status": "finished", "step": 700}', encoding="utf-8")
    _, done, left, total = command(*SWEEP, "--dry-run").out.splitlines()
    assert done.split()[2] == "finished"
    assert "finished" not in left
    assert total == f"2 points (1 finished), {' '.join(left.split()[2:4])}"
    points = command(*SWEEP, "--dry-run", "--output-format", "json").json["points"]
    assert [(point["result"] or {}).get("status") for point in points] == ["finished", None]


def test_a_sweep_that_fails_its_checks_has_json_output(command):
    answer = command(*TRAIN, "--sweep", "scheduler.warmup_steps=20,9000", "--output-format", "json")
    assert (answer.code, [point["result"] for point in answer.json["points"]]) == (1, [None, None])


def test_one_bad_point_and_none_is_started(command):
    command(*TRAIN, "--sweep", "scheduler.warmup_steps=20,9000").refused(
        1, "warmup_steps=9000", "no run was started"
    )
    assert not Path("sweep").exists()


def test_unequal_tokens_are_refused_unless_allowed(command):
    answer = command(*TRAIN, "--sweep", "trainer.max_steps=6000,6001", "--dry-run")
    assert answer.code == 1
    counts = re.search(r"unequal numbers of tokens: ([\d,]+) \(.*\), ([\d,]+) \(", answer.err)
    assert counts is not None
    assert counts[1] != counts[2], "rounded, both would be the same"
    sweep = (*TRAIN, "--sweep", "trainer.max_steps=600,700", "--dry-run")
    assert command(*sweep, "--allow-unequal-tokens").code == 0


@pytest.mark.parametrize(
    "axes",
    [
        ["contrastive.max_negatives=0,1"],
        ["trainer.gradient_accumulation_steps=1,2", "trainer.max_steps=60"],
    ],
)
def test_unequal_numbers_of_negatives_are_refused_unless_allowed(command, axes):
    words = [word for axis in axes for word in ("--sweep", axis)]
    pairs = ("train", "--profile", "contrastive-demo", *words, "--dry-run")
    command(*pairs).refused(1, "unequal numbers of")
    assert command(*pairs, "--allow-unequal-tokens").code == 0


def begin(folder: Path, *overrides: str, step: int = 5) -> ResolvedRun:
    """Leave a checkpoint of a run in its directory, with the config alone; return the run."""
    run = resolve_run("cpu-demo", (), (AUTO, f"trainer.output_dir={folder.absolute()}", *overrides))
    saved = folder / "checkpoints" / str(step) / "trainer_state" / "resolved.json"
    saved.parent.mkdir(parents=True)
    saved.write_text(json.dumps(to_dict(run.config)), encoding="utf-8")
    return run


@pytest.mark.parametrize(
    ("override", "keys"),
    [
        ("trainer.max_steps=701", ["trainer.max_steps"]),
        ("optimizer.weight_decay=0.3", ["optimizer.weight_decay"]),
        ("seed=9", ["seed"]),
        ("model.pretrained_checkpoint=other", ["model.pretrained_checkpoint"]),
        ("model.pretrained_checkpoint=first", []),
        ("trainer.logging_steps=3", []),
        ("guard.price_per_gpu_hour=3", []),
        ("trainer.resume_from_checkpoint=latest", []),
    ],
)
def test_a_run_is_begun_otherwise_by_what_determines_its_result(override, keys, tmp_path):
    weights = f"model.pretrained_checkpoint={Path('first').absolute()}"
    begin(tmp_path / "run", weights)
    (tmp_path / "run" / "manifest.json").write_text('{"working_directory": "/elsewhere"}', encoding="utf-8")
    run = resolve_run("cpu-demo", (), (AUTO, weights, override))
    assert [each.key for each in changed_settings(run, tmp_path / "run")] == keys


def test_checkpoints_tell_what_a_run_was_begun_with(tmp_path):
    run, folder = begin(tmp_path, step=5), tmp_path
    last = resolve_run("cpu-demo", (), ("trainer.max_steps=900",))
    (folder / "resolved.json").write_text(json.dumps(to_dict(last.config)), encoding="utf-8")
    assert changed_settings(run, folder) == (), "a launch that saved nothing"
    begin(tmp_path, "trainer.max_steps=800", step=6)
    assert [str(each) for each in changed_settings(run, folder)] == [
        "trainer.max_steps: 800 in the checkpoint, 700 in this run"
    ]
    afresh = resolve_run("cpu-demo", (), ("trainer.resume_from_checkpoint=never",))
    assert changed_settings(afresh, folder) == ()
    shutil.rmtree(folder / "checkpoints")
    assert changed_settings(run, folder) == (), "it starts at step 0"


@pytest.mark.child
def test_points_that_were_begun_otherwise_are_refused_unless_allowed(command, launch):
    begin(Path("sweep/lr=1e-3"), "optimizer.lr=1e-3", "trainer.max_steps=300")
    folder = Path("sweep/lr=1e-3")
    run = resolve_run("cpu-demo", (), ("optimizer.lr=1e-3", f"trainer.output_dir={folder.absolute()}"))
    (folder / "resolved.json").write_text(json.dumps(to_dict(run.config)), encoding="utf-8")
    (folder / "outcome.json").write_text('{"status": "finished", "step": 700}', encoding="utf-8")
    for options in ((), ("--dry-run",)):
        refused = command(*SWEEP, *options)
        assert (refused.code, refused.out) == (1, "")
        assert "other settings: lr=1e-3 (trainer.max_steps 300, now 700) [sweep-begun" in refused.err
        assert f"set another trainer.output_dir, remove {folder.absolute()}, or add --allow" in refused.err
    assert [path.name for path in Path("sweep").iterdir()] == ["lr=1e-3"]

    note = "* lr=1e-3 was begun with other settings, and its loss is not comparable: trainer.max_steps 300"
    listed = command(*SWEEP, "--dry-run", "--allow-unequal-tokens").out
    assert [line[:9] for line in listed.splitlines()[1:3]] == ["lr=1e-3 *", "lr=2e-3  "]
    assert note in listed
    table = launch(*SWEEP, "--allow-unequal-tokens", "-q", fake="finish").out.rpartition("eval loss\n")[2]
    assert sorted(line[:9] for line in table.splitlines()[:2]) == ["lr=1e-3 *", "lr=2e-3  "]
    assert note in table
    points = json.loads(Path("sweep/sweep.json").read_text(encoding="utf-8"))["points"]
    assert [point["begun_with_other_settings"] for point in points] == [
        ["trainer.max_steps: 300 in the checkpoint, 700 in this run"],
        [],
    ]


@pytest.mark.parametrize(
    ("sweep", "named"),
    [
        ("datacollator.mlm_probability=0.15,0.3", "datacollator.mlm_probability"),
        ("datacollator.mlm_probability_eval=0.15,0.3", "datacollator.mlm_probability"),
        ("tokenizer.vocab_size=1024,2048", "tokenizer.vocab_size"),
        ("trainer.eval_max_batches=4,null", "trainer.eval_max_batches"),
        ("sft.turns=all,last", "sft.turns"),
    ],
)
def test_points_that_are_not_evaluated_alike_are_named(sweep, named, command):
    start = ("train", "-p", "sft-demo") if "sft" in sweep else TRAIN
    answer = command(*start, "--dry-run", "--sweep", sweep).passed()
    assert f"warning: evaluation losses are not comparable: the points differ in {named}\n" in answer.err
    assert ("hint: set datacollator.mlm_probability_eval" in answer.err) == ("probability" in named)


def test_points_at_one_rate_of_evaluation_are_comparable(command):
    one_rate = ("--datacollator.mlm_probability_eval", "0.15")
    answer = command(*TRAIN, *one_rate, "--dry-run", "--sweep", "datacollator.mlm_probability=0.15,0.3")
    assert (answer.code, answer.err) == (0, "")


def test_a_warning_is_printed_at_the_first_point_that_has_it(command):
    answer = command(*TRAIN, "--dry-run", "--sweep", "optimizer.muon_lr=1e-3,2e-3").passed()
    assert answer.err.count("CFG013") == 1
    assert answer.err.startswith("muon_lr=1e-3\nwarn CFG013")
    differing = command(*TRAIN, "--dry-run", "--sweep", "optimizer.lr=1e-3,0.3,0.5").err
    assert [word for word in differing.split() if word.startswith("lr=")] == ["lr=0.3", "lr=0.5"]


def test_a_refused_point_has_no_result_of_an_earlier_launch(command, monkeypatch):
    earlier = Path("sweep/lr=1e-3")
    earlier.mkdir(parents=True)
    (earlier / "outcome.json").write_text('{"status": "interrupted", "exit_code": 130, "step": 3}', "utf-8")
    (earlier / "metrics.jsonl").write_text('{"step": 3, "eval/loss": 1.5}\n', "utf-8")
    (earlier / "manifest.json").write_text("{}", "utf-8")
    monkeypatch.setattr("launcher.commands.sweep_runs.train_point", lambda request, output_format: 1)
    answer = command(*SWEEP, "--unguarded", "the checks are not under test")
    assert answer.code == 1
    rows = [line.split()[:3] for line in answer.out.splitlines()[-4:-2]]
    assert rows == [["lr=1e-3", "not", "run"], ["lr=2e-3", "not", "run"]], "neither interrupted nor 1.5"
    points = json.loads(Path("sweep/sweep.json").read_text(encoding="utf-8"))["points"]
    assert [point["result"] for point in points] == [None, None]


@pytest.mark.parametrize(("direction", "order"), [("true", "210"), ("false", "012")])
def test_the_best_point_by_a_metric_of_a_plug_in_is_first(direction, order, tmp_path):
    """Its direction is known from `greater_is_better` alone."""
    metric = "eval/errors"
    keys = (f"trainer.metric_for_best_model={metric}", f"trainer.greater_is_better={direction}")
    results = []
    for number in range(3):
        point = Point(f"point{number}", str(number), (f"seed={number}",))
        summary = Summary("finished", 0, 9, 9, 9, None, None, None, None, "", "", 0, "", "")
        summary.last_evaluation[metric] = float(number)
        results.append(PointResult(make_candidate(Selection("cpu-demo", (), keys), point, tmp_path), summary))
    assert re.findall(r"^point(\d)", results_table(results, tmp_path, metric), re.MULTILINE) == [*order]


@pytest.mark.child
def test_a_sweep_to_its_end_and_again(launch, command):
    answer = launch(*SWEEP, fake="finish").passed()
    *_, first, second, _, charts = answer.out.splitlines()
    assert first.split()[:2] == ["lr=1e-3", "finished"]
    assert second.split()[:2] == ["lr=2e-3", "finished"]
    report = command(*charts.removeprefix("charts: neobert-launch ").split())
    assert report.out.endswith("/sweep/compare.html\n")
    longer = launch(*SWEEP, "--trainer.max_steps", "900", fake="crash")
    assert (longer.code, longer.out) == (1, "")
    for rate in ("1e-3", "2e-3"):
        assert f"lr={rate} (trainer.max_steps 700, now 900)" in longer.err
    again = launch(*SWEEP, "--output-format", "json", fake="crash").passed()
    content = json.loads(again.out)
    assert content == json.loads(Path("sweep/sweep.json").read_text(encoding="utf-8"))
    assert [point["result"]["status"] for point in content["points"]] == ["finished", "finished"]


@pytest.mark.child
def test_a_failed_point_does_not_end_a_sweep(launch):
    answer = launch(*SWEEP, fake="fail")
    assert answer.code != 0
    assert answer.out.count(" failed ") == 2


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
def test_a_stop_ends_a_sweep_and_the_same_command_goes_on(start_child, run_child):
    child = start_child(*SWEEP, fake="stop")
    while not Path("sweep/lr=1e-3/ready_0").exists():
        assert child.poll() is None
        time.sleep(0.02)
    child.send_signal(signal.SIGTERM)
    out, err = child.communicate(timeout=60)
    assert child.returncode == 75
    assert "not run" in out
    assert "continue with: neobert-launch train --resume auto" in err
    assert run_child(*SWEEP, fake="finish").code == 0

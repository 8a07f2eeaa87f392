"""The trainer's process: its command, its signals, and what its end means."""

import json
import os
import signal
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from launcher.process.child_start import RUN_MODULE
from launcher.process.trainer_process import Topology, child_environment, trainer_command
from launcher.run.next_command import resume_command
from launcher.run.summary import summarize_run, summary_text
from neobert.errors import ProjectError
from neobert.tasks.specs import SPECS

RESOLVED, LOGS = Path("/run/resolved.json"), Path("/run/logs")


@pytest.mark.parametrize(
    ("topology", "expected"),
    [
        (Topology(nnodes=2, node_rank=1, master_addr="a", master_port=29500),
         {"--nnodes": "2", "--node-rank": "1", "--master-addr": "a", "--master-port": "29500"}),
        (Topology(nnodes=2, rdzv_endpoint="a:29400"),
         {"--nnodes": "2", "--rdzv-endpoint": "a:29400", "--rdzv-backend": "static"}),
        (Topology(nnodes=2, node_rank=1), {"--rdzv-backend": "static", "--node-rank": "1"}),
        (Topology(nproc_per_node=2, rdzv_endpoint="a:29400"), {"--rdzv-backend": "c10d"}),
    ],
)  # fmt: skip
def test_nodes_meet_in_torchrun_s_words(topology, expected):
    words = trainer_command(RESOLVED, LOGS, topology)
    assert "--standalone" not in words
    assert {name: words[words.index(name) + 1] for name in expected} == expected


@pytest.mark.parametrize(
    ("extra", "expected"),
    [
        ((), [2, 3]),
        (("--rdzv-backend", "static", "--rdzv-conf=timeout=9"), [2, 3]),
        (("--rdzv_backend=c10d",), [0, 1, 2, 3]),
        (("--rdzv-backend=static", "--rdzv-backend", "etcd"), [0, 1, 2, 3]),
    ],
)
def test_a_node_s_ranks_follow_its_number_unless_torchrun_is_told_otherwise(extra, expected):
    topology = Topology(nproc_per_node=2, nnodes=2, node_rank=1, rdzv_endpoint="a:1", extra=extra)
    words = trainer_command(RESOLVED, LOGS, topology)
    end = words.index("launcher.process.child_start") - 1
    assert tuple(words[end - len(extra) : end]) == extra, "the last word on it is the user's"
    assert list(topology.ranks) == expected


@pytest.mark.child
def test_modules_of_the_current_folder_do_not_hide_ours(tmp_path):
    (tmp_path / "validators").mkdir()
    (tmp_path / "validators" / "__init__.py").touch()
    ask = [sys.executable, "-c", "import validators.finding"]
    safe = subprocess.run(
        ask, cwd=tmp_path, env=child_environment(tmp_path / "e"), capture_output=True, check=False
    )
    unsafe = subprocess.run(ask, cwd=tmp_path, capture_output=True, check=False)
    assert (safe.returncode, unsafe.returncode != 0) == (0, True)


def leave(folder: Path, outcome: dict[str, object] | None, error: ProjectError | None) -> None:
    (folder / "logs").mkdir()
    (folder / "logs" / "rank_0.log").write_text("first\nRuntimeError: a fault\n", encoding="utf-8")
    if outcome:
        (folder / "outcome.json").write_text(json.dumps(outcome), encoding="utf-8")
    if error:
        leave_error(folder, error)


def leave_error(folder: Path, error: ProjectError) -> None:
    (folder / "error.json").write_text(json.dumps(asdict(error)), encoding="utf-8")


ERROR = ProjectError("DAT004", "no text is left", "check the source", "corpus.txt", 1)


@pytest.mark.parametrize(
    ("outcome", "error", "code", "signals", "expected"),
    [
        (("finished", 0), None, 0, [], ("finished", 0)),
        (("preempted", 75), None, 75, [signal.SIGTERM], ("preempted", 75)),
        (("interrupted", 130), None, 130, [signal.SIGINT], ("interrupted", 130)),
        (("failed", 93), None, 93, [], ("failed", 93)),
        (None, ERROR, 1, [], ("failed", 1)),
        (None, None, 1, [], ("failed", 4)),
        (None, None, 0, [], ("failed", 4)),
        (None, None, -15, [], ("failed", 4)),
        (None, None, -15, [signal.SIGTERM], ("preempted", 75)),
        (None, ERROR, -15, [signal.SIGTERM], ("failed", 1)),
        (None, None, -9, [signal.SIGTERM], ("failed", 4)),
        (None, None, -2, [signal.SIGINT], ("interrupted", 130)),
        (None, None, -9, [signal.SIGINT] * 3, ("interrupted", 130)),
    ],
)
def test_what_an_end_means(outcome, error, code, signals, expected, tmp_path):
    leave(tmp_path, {"status": outcome[0], "exit_code": outcome[1], "step": 3} if outcome else None, error)
    ending = summarize_run(tmp_path, code, signals, tmp_path / "error.json")
    assert (ending.status, ending.exit_code) == expected
    assert bool(ending.message) == (expected[0] == "failed")


@pytest.mark.parametrize(
    ("code", "saved", "has_begun", "expected"),
    [
        (0, 7, True, ("finished", 0)),
        (0, 6, True, ("failed", 4)),
        (0, 7, False, ("failed", 4)),
        (0, None, True, ("failed", 4)),
        (75, 3, True, ("preempted", 75)),
        (75, None, False, ("failed", 4)),
        (1, 7, True, ("failed", 4)),
    ],
)
def test_a_trainer_that_had_no_room_for_its_last_word_is_taken_by_what_it_saved(
    code, saved, has_begun, expected, tmp_path
):
    leave(tmp_path, None, None)
    (tmp_path / "heartbeat_rank0.jsonl").write_text('{"step": 7, "max_steps": 7}\n', encoding="utf-8")
    if saved is not None:
        (tmp_path / "checkpoints" / str(saved)).mkdir(parents=True)
    ending = summarize_run(tmp_path, code, [], tmp_path / "error.json", has_begun=has_begun)
    assert (ending.status, ending.exit_code) == expected


def test_an_error_of_the_child_is_told_once(tmp_path):
    leave(tmp_path, {"status": "failed", "exit_code": 4, "message": "no text is left"}, ERROR)
    (tmp_path / "metrics.jsonl").write_text('{"step": 0, "eval/loss": 8.25}\n', encoding="utf-8")
    text = summary_text(summarize_run(tmp_path, 4, [], tmp_path / "error.json"))
    assert "eval loss: 8.2500 at step 0" in text.splitlines()
    assert text.count("no text is left") == 1
    assert "hint: check the source" in text


@pytest.mark.parametrize(
    ("status", "step", "line"),
    [
        ("failed", 0, "failed before the end of step 1 of 9 (exit 4)"),
        ("failed", 7, "failed after step 7 of 9 (exit 4)"),
        ("preempted", 7, "preempted at step 7 of 9 (exit 4)"),
    ],
)
def test_a_failed_run_ended_after_its_last_complete_step(tmp_path, status, step, line):
    leave(tmp_path, {"status": status, "exit_code": 4, "message": "no text is left", "step": step}, None)
    (tmp_path / "heartbeat_rank0.jsonl").write_text('{"step": 0, "max_steps": 9}\n', encoding="utf-8")
    assert summary_text(summarize_run(tmp_path, 4, [], None)).splitlines()[0] == line


@pytest.mark.parametrize(
    ("step", "best", "expected"),
    [
        (10, "", " (no checkpoint of that step)"),
        (10, "20", " (no checkpoint of that step; checkpoints/best links to step 20)"),
        (20, "", ": {0}/20"),
    ],
)
def test_the_best_evaluation_is_named_with_its_checkpoint(tmp_path, step, best, expected):
    losses = dict.fromkeys((0, 10, 20, 40), 3.0) | {step: 2.5}
    rows = [json.dumps({"step": at, "eval/loss": loss}) for at, loss in losses.items()]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "resolved.json").write_text('{"task": "pretrain"}', encoding="utf-8")
    checkpoints = tmp_path / "checkpoints"
    for saved in (20, 40):
        (checkpoints / str(saved)).mkdir(parents=True)
    if best:
        (checkpoints / "best").symlink_to(best)
    text = summary_text(summarize_run(tmp_path, 0, [], None)).replace("\n    ", " ")
    assert f"best: eval loss 2.5000 at step {step}{expected.format(checkpoints)}" in text.splitlines()


def test_a_run_that_trained_names_the_command_that_draws_it(tmp_path):
    folder = tmp_path / "a run"
    folder.mkdir()
    assert "charts:" not in summary_text(summarize_run(folder, 0, [], None))
    beat = '{"step": 7, "max_steps": 7, "tokens_total": 70}\n'
    (folder / "heartbeat_rank0.jsonl").write_text(beat, encoding="utf-8")
    text = summary_text(summarize_run(folder, 0, [], None))
    assert f"charts: neobert-launch report '{folder}'" in text.splitlines()


def test_checkpoints_that_will_be_removed_are_not_named(tmp_path):
    rows = [json.dumps({"step": step, "eval/loss": loss}) for step, loss in ((0, 3.0), (4, 1.0), (8, 2.0))]
    (tmp_path / "metrics.jsonl").write_text("\n".join(rows) + "\n", encoding="utf-8")
    (tmp_path / "resolved.json").write_text('{"task": "pretrain"}', encoding="utf-8")
    for step in ("4", "8"):
        (tmp_path / "checkpoints" / step).mkdir(parents=True)
    (tmp_path / "checkpoints" / "latest").symlink_to("8")
    leave(tmp_path, {"status": "finished", "exit_code": 0, "step": 8}, None)
    ending = summarize_run(tmp_path, 0, [], None)
    assert summary_text(ending).count("checkpoints/") == 3
    text = summary_text(ending, keeps_checkpoints=False)
    assert "checkpoints/" not in text
    assert text.splitlines()[-1] == "best: eval loss 1.0000 at step 4"
    stopped = replace(ending, exit_code=75)
    assert summary_text(stopped, keeps_checkpoints=False) == summary_text(stopped)


@pytest.mark.parametrize("log", ["rank_0.log", "torchrun.log"], ids=["a rank", "torchrun started none"])
def test_a_crash_shows_its_last_line_and_the_log(log, tmp_path):
    leave(tmp_path, None, None)
    (tmp_path / "logs" / "rank_0.log").rename(tmp_path / "logs" / log)
    message = summarize_run(tmp_path, 1, [], tmp_path / "error.json").message
    assert "RuntimeError: a fault" in message
    assert log in message


def test_a_checkpoint_that_was_refused_is_not_offered_again(tmp_path, monkeypatch):
    monkeypatch.setattr("sys.argv", ["neobert-launch", "train"])
    (tmp_path / "checkpoints" / "5").mkdir(parents=True)
    (tmp_path / "checkpoints" / "latest").symlink_to("5")
    refused = ProjectError("CKP007", "the checkpoint is another run's", "give the run back what it had")
    leave(tmp_path, None, refused)
    ending = summarize_run(tmp_path, 1, [], tmp_path / "error.json")
    assert (ending.exit_code, ending.next_command) == (1, "")
    text = summary_text(ending)
    assert "give the run back what it had" in text
    assert "next:" not in text
    leave_error(tmp_path, ERROR)
    failed = summarize_run(tmp_path, 1, [], tmp_path / "error.json")
    assert f"after the fix: {failed.next_command}" in summary_text(failed)
    assert "after the fix: " in summary_text(replace(failed, exit_code=93))
    assert "next: " in summary_text(replace(failed, exit_code=75))
    assert "--resume auto" in failed.next_command


def test_the_model_to_load_is_the_best_one_where_there_is_one(tmp_path, monkeypatch):
    derived = replace(SPECS["classification"], labels=None)  # labels that the task computes from the text
    monkeypatch.setitem(SPECS, "derived", derived)
    for step in (5, 10):
        (tmp_path / "checkpoints" / str(step)).mkdir(parents=True)
    (tmp_path / "checkpoints" / "latest").symlink_to("10")
    leave(tmp_path, {"status": "finished", "exit_code": 0}, None)
    for link, loaded in ((None, "10"), ("5", "5")):
        if link:
            (tmp_path / "checkpoints" / "best").symlink_to(link)
        ending = summarize_run(tmp_path, 0, [], tmp_path / "error.json")
        assert ending.next_command.endswith(f"from_pretrained('{tmp_path}/checkpoints/{loaded}')")
    for task, command in (
        ("classification", f"predict {tmp_path}/checkpoints/5 FILE"),
        ("derived", f"predict {tmp_path}/checkpoints/5 FILE"),
        ("causal", f"evaluate generation {tmp_path}/checkpoints/5 FILE"),
        ("sft", f"chat {tmp_path}/checkpoints/5"),
        ("pretrain", f"predict {tmp_path}/checkpoints/5 'A text with a [MASK].'"),
    ):
        (tmp_path / "resolved.json").write_text(json.dumps({"task": task}))
        ending = summarize_run(tmp_path, 0, [], tmp_path / "error.json")
        assert ending.next_command == f"neobert-launch {command}"
    (tmp_path / "checkpoints" / "5" / "tokenizer_config.json").write_text('{"mask_token": "<mask>"}')
    ending = summarize_run(tmp_path, 0, [], tmp_path / "error.json")
    assert ending.next_command.endswith(" 'A text with a <mask>.'")


def test_a_torn_error_file_is_no_error_of_ours(tmp_path):
    (tmp_path / "error.json").write_text('{"code": "DAT', encoding="utf-8")
    assert summarize_run(tmp_path, 1, [], tmp_path / "error.json").exit_code == 4


@pytest.mark.parametrize(
    ("words", "has_checkpoint", "expected"),
    [
        (["-p", "demo", "--set", "a=my run"], False, "--resume auto -p demo --set 'a=my run'"),
        (["-p", "demo"], True, "--resume auto -p demo"),
        (["--resume", "auto", "-p", "demo"], True, "--resume auto -p demo"),
        (["-p", "demo", "--resume", "other/checkpoints/5"], True, "--resume auto -p demo"),
        (["-p", "demo", "--resume=never"], True, "--resume auto -p demo"),
        (["-p", "demo", "--resume", "other/checkpoints/5"], False, "-p demo --resume other/checkpoints/5"),
        (["-p", "demo", "--receipt", "checked"], True, "--resume auto -p demo"),
        (["-p", "demo", "--receipt=checked", "--resume=never"], True, "--resume auto -p demo"),
        (["--receipt", "r", "--resume", "auto"], True, "--resume auto --receipt r"),
        (["--receipt", "r", "--resume=auto"], True, "--resume auto --receipt r"),
    ],
)
def test_the_next_command_is_this_one_resumed(words, expected, monkeypatch, *, has_checkpoint):
    for verb in ("train", "pretrain"):
        monkeypatch.setattr(sys, "argv", ["x", verb, *words])
        assert resume_command(has_checkpoint=has_checkpoint) == f"neobert-launch {verb} {expected}"


@pytest.mark.child
def test_the_log_of_a_rank(tmp_path, monkeypatch):
    program = "import sys; print('out'); print('err', file=sys.stderr)"
    command = [
        sys.executable,
        "-m",
        "launcher.process.child_start",
        "rank",
        str(tmp_path),
        sys.executable,
        "-c",
        program,
    ]
    subprocess.run(command, env={**os.environ, "RANK": "3"}, check=True)
    assert sorted((tmp_path / "rank_3.log").read_text(encoding="utf-8").split()) == ["err", "out"]


def test_threads_of_a_child_wait_politely_unless_somebody_says_otherwise(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_WAIT_POLICY", raising=False)
    assert child_environment(tmp_path)["OMP_WAIT_POLICY"] == "PASSIVE"
    monkeypatch.setenv("OMP_WAIT_POLICY", "ACTIVE")
    assert child_environment(tmp_path)["OMP_WAIT_POLICY"] == "ACTIVE"


def test_ranks_of_a_node_share_its_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(16)))
    assert "OMP_NUM_THREADS" not in child_environment(tmp_path)
    assert child_environment(tmp_path, ranks=4)["OMP_NUM_THREADS"] == "4"
    assert child_environment(tmp_path, ranks=32)["OMP_NUM_THREADS"] == "1"
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert child_environment(tmp_path, ranks=4)["OMP_NUM_THREADS"] == "3"


def test_a_single_process_is_no_rank_of_what_stands_around_the_launch(tmp_path, monkeypatch):
    for name, value in {"RANK": "1", "WORLD_SIZE": "2", "MASTER_ADDR": "node0", "PMI_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("PET_NODE_RANK", "1")
    reported = child_environment(tmp_path, more={"MASTER_PORT": "29500"})
    assert not {"RANK", "WORLD_SIZE", "MASTER_ADDR", "PMI_SIZE"} & reported.keys()
    assert (reported["PET_NODE_RANK"], reported["MASTER_PORT"]) == ("1", "29500"), (
        "torchrun's own, and what we say"
    )


@pytest.mark.child
@pytest.mark.parametrize(("parent", "code"), [("os.getppid()", 0), ("2**22 + 1", -signal.SIGTERM)])
def test_a_child_whose_parent_died_before_it_could_be_told_ends(parent, code):
    program = (
        "import os\nfrom launcher.process.child_start import signal_at_parent_death\n"
        f"signal_at_parent_death(15, {parent})()"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == code


@pytest.mark.child
def test_a_module_does_not_run_for_a_parent_that_ended_while_it_started():
    command = [sys.executable, *RUN_MODULE, "platform"]
    child = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert child.stdout is not None
    child.stdout.close()
    assert (child.wait(60), child.communicate()[1]) == (130, b"")

"""Which rank of several was lost, by what torchrun leaves in its log."""

import sys

import pytest

from launcher.process.trainer_process import Topology, process_log, start_trainer_process, trainer_command
from launcher.run.session import Session, lost_rank

SAID = """{requested}
Failures:
[1]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 2 (local_rank: 2)
  exitcode  : {other} (pid: 1233) (SIGKILL)
  error_file: <N/A>
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  time      : 2026-01-01_00:00:00
  host      : here
  rank      : 3 (local_rank: 3)
  exitcode  : {code} (pid: 1234)
  error_file: <N/A>
"""
ASKED = "W0101 00:00:00.000000 9 torch/x.py:1010] Sending process 1233 closing signal SIGTERM"
# Rank 1 ends as it is told once rank 0 stands in a wait that nothing but a signal ends.
RANKS = """
import os, pathlib, signal, time
waits = pathlib.Path({folder!r}) / "waits"
if os.environ["RANK"] == "0":
    waits.touch()
    time.sleep(60)
while not waits.exists():
    time.sleep(0.02)
{end}
"""


def session(code: int, reported: str) -> Session:
    return Session(code=code, stall=None, has_begun=True, first_step=0, output=reported)


@pytest.mark.parametrize(
    ("code", "other", "requested", "expected"),
    [
        (-9, 4, "", (3, 9)),
        (4, -9, "", (2, 9)),  # torchrun looked too late to see it first
        (4, 4, "", None),
        (-9, -9, "", (3, 9)),
        (-9, -9, ASKED, (3, 9)),  # it waited for the lost one on its device until torchrun killed it
        (-9, -15, ASKED, (3, 9)),
        (4, -9, ASKED, None),
        (4, -15, ASKED, None),
    ],
)
def test_the_lost_rank_is_one_that_torchrun_did_not_end(code, other, requested, expected):
    reported = SAID.format(code=code, other=other, requested=requested)
    assert lost_rank(session(1, reported), has_agent=True) == expected


@pytest.mark.parametrize(("code", "expected"), [(1, None), (4, None), (-9, (None, 9))])
def test_where_torchrun_says_nothing_of_its_ranks_only_it_can_be_lost(code, expected):
    assert lost_rank(session(code, "nothing of that kind"), has_agent=True) == expected


@pytest.mark.parametrize(
    ("code", "reported", "expected"),
    [
        (1, SAID.format(code=75, other=-15, requested=ASKED), 75),
        (1, "nothing of that kind", 1),
        (-9, SAID.format(code=75, other=75, requested=""), -9),
        (0, "", 0),
        (75, "", 75),
    ],
)
def test_a_trainer_that_leaves_no_outcome_has_a_code_still(code, reported, expected):
    assert session(code, reported).trainer_code == expected


def test_without_torchrun_it_is_the_only_one():
    assert lost_rank(session(-11, ""), has_agent=False) == (0, 11)
    assert lost_rank(session(4, ""), has_agent=False) is None


@pytest.mark.e2e
@pytest.mark.usefixtures("warm")
@pytest.mark.parametrize(
    ("end", "expected", "code"),
    [("os.kill(os.getpid(), signal.SIGKILL)", (1, 9), -9), ("raise SystemExit(4)", None, 4)],
)
def test_torchrun_says_it_in_these_words(tmp_path, end, expected, code):
    program = tmp_path / "program.py"
    program.write_text(RANKS.format(folder=str(tmp_path), end=end), encoding="utf-8")
    topology, logs = Topology(nproc_per_node=2), tmp_path / "logs"
    logs.mkdir()
    words = trainer_command(tmp_path / "resolved.json", logs, topology)
    command = [*words[: words.index(str(logs)) + 1], sys.executable, str(program)]
    child = start_trainer_process(command, process_log(topology, logs), tmp_path / "error.json", ranks=2)
    ended = session(child.wait(60), process_log(topology, logs).read_text(encoding="utf-8"))
    assert [(each.rank, each.was_stopped_by_torchrun) for each in ended.ended_ranks] == [
        (0, True),
        (1, False),
    ]
    assert lost_rank(ended, has_agent=True) == expected
    assert ended.trainer_code == code

"""What a shell is told when someone presses Tab, asked as bash asks."""

import pytest
from typer.testing import CliRunner

from launcher.cli.app import app_with_all_commands


def offered(line: str) -> list[str]:
    """Return what may stand in place of a line's last word."""
    words = line.split(" ")
    requested = {"COMP_WORDS": line, "COMP_CWORD": str(len(words) - 1)}
    environment = requested | {"_NEOBERT_LAUNCH_COMPLETE": "complete_bash"}
    ended = CliRunner().invoke(app_with_all_commands(), [], env=environment, prog_name="neobert-launch")
    assert (ended.exit_code, ended.stderr) == (0, "")
    return ended.stdout.split()


@pytest.mark.parametrize(
    ("line", "last_words"),
    [
        ("neobert-launch pref", ["preflight"]),
        ("neobert-launch train -p h200", ["h200-prod"]),
        ("neobert-launch plan --profile=h200", ["h200-prod"]),
        ("neobert-launch profiles diff h200-prod a100", ["a100-prod"]),
        ("neobert-launch rule CKP00", [f"CKP00{number}" for number in range(1, 10)]),
        ("neobert-launch explain model.rope_", ["model.rope_theta"]),
        ("neobert-launch train --optimizer.name adamw --trainer.max_s", ["--trainer.max_steps"]),
        ("neobert-launch train --unguarded why --dry", ["--dry-run"]),
    ],
)
def test_a_last_word_is_completed(line, last_words):
    assert offered(line) == last_words


def test_keys_do_not_bury_the_options():
    assert "--profile" in offered("neobert-launch train --")
    assert not [word for word in offered("neobert-launch train --") if "." in word]


def test_what_makes_no_sense_offers_nothing():
    assert offered("neobert-launch train -p no-such") == []
    assert offered("neobert-launch no-such-command --set") == []

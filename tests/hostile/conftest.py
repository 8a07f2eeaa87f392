"""What the tests of hostile surroundings share: commands in this process, away from the checkout."""

from tests.launcher.conftest import _away_from_the_repository, command, run_file, subject

__all__ = ["_away_from_the_repository", "command", "run_file", "subject"]

"""Content hashes of the shipped profiles: `python -m profiles.lock --check` or `--write`."""

from __future__ import annotations

import argparse
import sys

from neobert.errors import EXIT_CHECK_FAILED, EXIT_OK, ProjectError
from profiles.inherit import SHIPPED, profile_files, read_pins, write_pins
from profiles.registry import profile_digest


def shipped_hashes() -> dict[str, str]:
    """Return the hash of each shipped profile that a run can use, by name."""
    shipped = [name for name, path in profile_files().items() if path.is_relative_to(SHIPPED)]
    return {name: profile_digest(name) for name in sorted(shipped) if not name.startswith("_")}


def main(arguments: list[str] | None = None) -> int:
    """Check or write profiles.lock; return the exit code, which is 1 if the check finds a difference."""
    parser = argparse.ArgumentParser(prog="python -m profiles.lock", description=__doc__)
    mode = parser.add_mutually_exclusive_group(required=True)
    mode.add_argument(
        "--check", action="store_true", help="exit with code 1 if a profile differs from its lock"
    )
    mode.add_argument("--write", action="store_true", help="write the current hashes")
    options = parser.parse_args(arguments)
    try:
        return _write_hashes() if options.write else _check_hashes()
    except ProjectError as error:
        print(error)
        return error.exit_code


def _write_hashes() -> int:
    write_pins(shipped_hashes())
    return EXIT_OK


def _check_hashes() -> int:
    current, locked = shipped_hashes(), read_pins()
    changed = sorted(name for name in current.keys() | locked.keys() if current.get(name) != locked.get(name))
    if changed:
        print(f"these profiles differ from profiles.lock: {', '.join(changed)}")
        print("  hint: review the change, then run `python -m profiles.lock --write`")
    return EXIT_CHECK_FAILED if changed else EXIT_OK


if __name__ == "__main__":
    sys.exit(main())

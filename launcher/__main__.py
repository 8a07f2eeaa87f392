"""Entry point for `neobert-launch` and `python -m launcher`."""

import os
import sys


def main() -> None:
    """Run the command line; Ctrl-C and shadowed modules during the imports exit without a traceback."""
    try:
        from neobert.gc_policy import collect_rarely, skip_collection_at_exit

        collect_rarely()
        skip_collection_at_exit()
        from launcher.cli.app import main as run_command_line
    except ImportError:
        from launcher.io.shadowed_modules import REMOVE_SHADOW, describe_shadowed

        if shadowed := describe_shadowed(sys.path):  # `neobert`, which the errors of commands need
            print(f"error: {shadowed} [HST006]\n  = hint: {REMOVE_SHADOW}", file=sys.stderr)
            sys.exit(3)
        raise
    except BaseException as error:
        # Python 3.11 raises RuntimeError for what interrupts the creation of a class.
        if not isinstance(error.__cause__ or error, KeyboardInterrupt):
            raise
        print("error: Ctrl-C: stopped before there was a result [interrupted]", file=sys.stderr)
        sys.exit(130)
    run_command_line()


# `python -m` searches the current directory first, and a folder there may have the name of a package of ours.
# It stays where it is the checkout that runs.
if __name__ == "__main__":
    if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
        del sys.path[0]
    main()

"""`python -m launcher.errand MODULE ...` is `python -m MODULE ...` whose end by Ctrl-C is no traceback.

Its packages may take seconds to import, and nothing of the module could answer then.
"""

from __future__ import annotations

import runpy
import sys

from neobert.errors import EXIT_INTERRUPTED


def main() -> None:
    """Run the module that the first argument names, with the arguments behind it."""
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()

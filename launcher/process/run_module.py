"""`python -m launcher.process.run_module MODULE ...` ends with the launcher.

Its packages may take seconds to import, and nothing of the module itself could answer a Ctrl-C then.
"""

from __future__ import annotations

import runpy
import signal
import sys

from launcher.process.parent_death import dying_with_parent
from neobert.errors import EXIT_INTERRUPTED
from neobert.gc_policy import collect_rarely


def main() -> None:
    """Run the module that the first argument names, with the arguments behind it."""
    # A job in the background of a shell ignores Ctrl-C, and has inherited that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    dying_with_parent(signal.SIGINT)()
    collect_rarely()
    del sys.argv[0]
    try:
        runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)


if __name__ == "__main__":
    main()

"""Run a module as a child that dies with the launcher: `python -m launcher.process.run_module MODULE ...`.

Ctrl-C is handled from the start, also during the seconds in which the module imports its packages.
"""

from __future__ import annotations

import runpy
import signal
import sys

from launcher.process.parent_death import dying_with_parent
from neobert.errors import EXIT_INTERRUPTED
from neobert.gc_policy import collect_rarely


def main() -> None:
    """Run the module named by the first argument with the remaining arguments."""
    # A background job of a shell inherits an ignored SIGINT.
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

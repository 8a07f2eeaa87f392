"""Entry point of `python -m launcher`, the same as `neobert-launch`."""

import os
import sys

# `python -m` searches the current directory first, and a folder there may have the name of a package of ours.
# It stays where it is the checkout that runs.
if not sys.flags.safe_path and sys.path[0] != os.path.dirname(os.path.dirname(__file__)):
    del sys.path[0]

from launcher.cli.app import main

main()

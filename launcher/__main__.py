"""`python -m launcher` is `neobert-launch`."""

from launcher.cli import main

main()

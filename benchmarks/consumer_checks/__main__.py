"""Checks of an exported checkpoint in other libraries: `python consumer_checks CHECK EXPORTED WORK_DIR`.

Runs in an environment without this project. EXPORTED holds the folders of `neobert-launch export`. A check
prints what it saw as JSON; an exception is a failure.
"""

import importlib.metadata
import inspect
import json
import sys
from pathlib import Path

from registry import CHECKS

MODULES = ("in_transformers", "in_sentence_transformers", "in_other_runtimes")


def main(name: str, exported: str, work: str) -> None:
    """Run one check and print the evidence."""
    for module in MODULES:
        importlib.import_module(module)  # registers its checks
    function, distributions = CHECKS[name]
    takes_work = "work" in inspect.signature(function).parameters
    evidence = function(Path(exported), *([Path(work)] if takes_work else []))
    versions = {each: importlib.metadata.version(each) for each in distributions}
    print(json.dumps({"evidence": evidence, "versions": versions}))


if __name__ == "__main__":
    main(*sys.argv[1:])

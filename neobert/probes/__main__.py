"""`python -m neobert.probes RESOLVED.json [--device cuda|cpu] [--full]`: what the probes measured, as JSON.

`--path LABEL` probes only that path, and prints its part of the result.
The last line on standard output is the result; progress goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path
from typing import Any

import torch

from neobert.errors import ProjectError, write_error_file
from neobert.probes.numerics.suite import ParallelPaths, probe_named, run_suite
from neobert.train import read_config


def main(arguments: list[str]) -> int:
    """Run the suite; return 0 if there is a result, including a failure of the probes."""
    request = _parse(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        result = answer(request.config, request.device, every=request.full, label=request.path)
    except ProjectError as error:
        write_error_file(error)
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result, allow_nan=False))
    return 0


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m neobert.probes", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--full", action="store_true", help="every installed backend")
    parser.add_argument("--path", metavar="LABEL", help="only the path with this label")
    return parser.parse_args(arguments)


def answer(path: Path, device: str | None, *, every: bool, label: str | None = None) -> dict[str, Any]:
    """Return the measurements as JSON values, or `unsupported` with the reason if there are none."""
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        return {"unsupported": f"torch {torch.__version__} finds no CUDA device"}
    config, device_type = read_config(path), device or ("cuda" if has_cuda else "cpu")
    if label is not None:
        return probe_named(config, device_type, label)
    probe = ParallelPaths(path) if every else None
    return {"unsupported": "", "numerics": run_suite(config, device_type, every=every, probe=probe)}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

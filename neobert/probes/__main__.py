"""`python -m neobert.probes RESOLVED.json [--device cuda|cpu] [--full]`: measurements of the numerics probes.

The last line of standard output is the result as JSON; progress goes to standard error. With `--path LABEL`,
the result is the report of that path (combination of kernels) alone.
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
from neobert.families.table import model_family
from neobert.objectives.step_kernels import set_torch_kernels
from neobert.probes.attention_suite import probe_attention
from neobert.probes.numerics.suite import ParallelPaths, probe_path_by_label, run_suite
from neobert.train import exit_process, read_config


def main(arguments: list[str]) -> int:
    """Run the suite and print its result; return 0, or the exit code of a `ProjectError`.

    A probe that fails is part of the result and does not change the exit code.
    """
    request = _parse_arguments(arguments)
    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(message)s")
    try:
        result = probe_run_file(request.config, request.device, every=request.full, label=request.path)
    except ProjectError as error:
        write_error_file(error)
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(result, allow_nan=False))
    return 0


def _parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m neobert.probes", description=__doc__)
    parser.add_argument("config", type=Path)
    parser.add_argument("--device", choices=("cuda", "cpu"))
    parser.add_argument("--full", action="store_true", help="probe every installed kernel")
    parser.add_argument("--path", metavar="LABEL", help="probe only the path with this label")
    return parser.parse_args(arguments)


def probe_run_file(
    path: Path, device: str | None, *, every: bool, label: str | None = None
) -> dict[str, Any]:
    """Probe the run of a resolved config; return JSON values, with `unsupported` set if CUDA is missing.

    Args:
        device: "cuda" or "cpu"; None: "cuda" if a CUDA device is available.
        every: probe every kernel that can run on this machine.
        label: return only the report of the path with this label.

    Raises `ProjectError` if the config cannot be read, or names kernels that cannot run here.
    """
    has_cuda = torch.cuda.is_available()
    if device == "cuda" and not has_cuda:
        return {"unsupported": f"torch {torch.__version__} finds no CUDA device"}
    config, device_type = read_config(path), device or ("cuda" if has_cuda else "cpu")
    if not model_family(config).has_numerics_probes:
        set_torch_kernels(config, device_type)
        return {"unsupported": "", "numerics": probe_attention(config)}
    if label is not None:
        return probe_path_by_label(config, device_type, label)
    probe = ParallelPaths(path) if every else None
    return {"unsupported": "", "numerics": run_suite(config, device_type, every=every, probe=probe)}


if __name__ == "__main__":
    exit_process(main(sys.argv[1:]))

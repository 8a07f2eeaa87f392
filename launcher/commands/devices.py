"""Visibility of devices for a run and its checks."""

from __future__ import annotations

import os

from profiles.registry import ResolvedRun

VISIBLE_ENV = "CUDA_VISIBLE_DEVICES"


def keep_to_its_device(run: ResolvedRun) -> None:
    """Hide GPUs from all that is started for a run whose profile is for a CPU.

    It was planned for a CPU, and nobody has request whether the GPUs are idle, sound, or its own.
    """
    if run.device == "cpu":
        os.environ[VISIBLE_ENV] = ""

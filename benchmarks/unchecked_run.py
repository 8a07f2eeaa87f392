"""A run directory that `python -m neobert.train` accepts without a preflight."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path

from neobert.config import RunConfig, digest, to_dict
from neobert.receipt import FILE_NAME, Receipt, utc_now, write_receipt
from neobert.runfiles.run_dir import RESOLVED


def write_run(run_dir: Path, config: RunConfig) -> None:
    """Lay out the directory; in one that is there, this config replaces the earlier one."""
    run_dir.mkdir(parents=True, exist_ok=True)
    (run_dir / RESOLVED).write_text(json.dumps(to_dict(config)), encoding="utf-8")
    now = utc_now()
    receipt = Receipt(
        config_digest=digest(config), profile="", code_version="", created_utc=now.isoformat(),
        expires_utc=(now + timedelta(hours=2)).isoformat(), verdict="pass", levels=("static",), checks=(),
        waivers=(), hostname="", versions={},
    )  # fmt: skip
    write_receipt(receipt, run_dir / FILE_NAME)

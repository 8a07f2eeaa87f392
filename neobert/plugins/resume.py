"""Rejection of a checkpoint whose plug-ins were edited since."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from neobert.config import to_dict
from neobert.config.schema import RunConfig
from neobert.errors import ProjectError
from neobert.plugins.changes import plugin_differences

CODE = "PLG003"


def refuse_edited_plugins(folder: Path, saved: Mapping[str, Any], config: RunConfig) -> None:
    """Raise `ProjectError` PLG003 if plug-ins differ from those of the checkpoint, without a waiver."""
    differences = plugin_differences(saved, to_dict(config))
    if differences and all(each.code != CODE for each in config.waivers):
        message = f"belongs to a run with other plug-ins: {'; '.join(differences)}"
        hint = f"restore the files, or add a waiver of {CODE} to the run file"
        raise ProjectError(CODE, message, hint, str(folder))

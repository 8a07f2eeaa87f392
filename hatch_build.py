"""Build hook of the wheel: `launcher`, `profiles` and `validators` go into `neobert`, its only package.

An editable installation keeps the folders of the checkout.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES, PARENT = ("launcher", "profiles", "validators"), "neobert"
OWN_NAME = re.compile(rf"((?:^ *(?:from|import)|python -m) )(?=(?:{'|'.join(PACKAGES)})\b)", re.MULTILINE)


class OneTopLevelPackage(BuildHookInterface[Any]):
    """Add the three packages; their imports and `python -m` in their messages name the new place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Rewrite the imports into a temporary folder, and include its files."""
        self._rewritten = TemporaryDirectory()
        if version == "editable":
            return
        for number, file in enumerate(self._files()):
            source, target = file, f"{PARENT}/{file.relative_to(self.root)}"
            if file.suffix == ".py":
                source = Path(self._rewritten.name, f"{number}.py")
                source.write_text(OWN_NAME.sub(rf"\1{PARENT}.", file.read_text("utf-8")), "utf-8")
            build_data["force_include"][str(source)] = target
        scripts = self.metadata.core.scripts
        scripts.update({name: f"{PARENT}.{function}" for name, function in scripts.items()})

    def _files(self) -> list[Path]:
        found = (file for each in PACKAGES for file in Path(self.root, each).rglob("*") if file.is_file())
        return sorted(file for file in found if file.parent.name != "__pycache__")

    def finalize(self, *_: Any) -> None:
        """Remove the temporary folder."""
        self._rewritten.cleanup()

"""Build hook of the wheel: `launcher`, `profiles` and `validators` go into `neobert`.

Beside it is `neobert_launch`, the Python interface, under the name of the project.

An editable installation keeps the folders of the checkout.
"""

from __future__ import annotations

import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGES, PARENT, INTERFACE = ("launcher", "profiles", "validators"), "neobert", "neobert_launch"
OWN_NAME = re.compile(rf"((?:^ *(?:from|import)|python -m) )(?=(?:{'|'.join(PACKAGES)})\b)", re.MULTILINE)


class OneTopLevelPackage(BuildHookInterface[Any]):
    """Add the packages; imports of the three, and `python -m` in messages, name the new place."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Rewrite the imports into a temporary folder, and include its files."""
        self._rewritten = TemporaryDirectory()
        if version == "editable":
            return
        for number, file in enumerate(self._files()):
            place = file.relative_to(self.root)
            source, target = file, str(place if place.parts[0] == INTERFACE else PARENT / place)
            if file.suffix == ".py":
                source = Path(self._rewritten.name, f"{number}.py")
                source.write_text(OWN_NAME.sub(rf"\1{PARENT}.", file.read_text("utf-8")), "utf-8")
            build_data["force_include"][str(source)] = target
        scripts = self.metadata.core.scripts
        scripts.update({name: f"{PARENT}.{function}" for name, function in scripts.items()})

    def _files(self) -> list[Path]:
        folders = (Path(self.root, name) for name in (*PACKAGES, INTERFACE))
        found = (file for folder in folders for file in folder.rglob("*") if file.is_file())
        return sorted(file for file in found if file.parent.name != "__pycache__")

    def finalize(self, *_: Any) -> None:
        """Remove the temporary folder."""
        self._rewritten.cleanup()

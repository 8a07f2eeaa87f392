"""`schema`: the JSON Schema of run files."""

from __future__ import annotations

import json

from launcher.terminal import console
from neobert.config.json_schema import json_schema
from neobert.errors import EXIT_OK


def run() -> int:
    """Print the schema that editors use."""
    console.write(json.dumps(json_schema(), indent=2, ensure_ascii=False))
    return EXIT_OK

"""A file of texts, for tests with and without torch."""

import json
from pathlib import Path


def write_jsonl(path: Path, texts: list[str], column: str = "text") -> Path:
    """Write one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({column: text}) + "\n" for text in texts), encoding="utf-8")
    return path

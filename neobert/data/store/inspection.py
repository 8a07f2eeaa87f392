"""Inspection of a run's text before training.

`python -m neobert.data.store.inspection RESOLVED.json` prepares the text that a resolved config names, as the
trainer would, and prints one line of JSON: `{"refusal": {...}, "prepared": {...} or null}`.
"""

from __future__ import annotations

import sys
from typing import Any

from neobert.config import from_dict
from neobert.config.schema import RunConfig
from neobert.data.store.prepare import prepare
from neobert.errors import ProjectError
from neobert.json_program import serve
from neobert.train import exit_process

NO_REFUSAL = {"code": "", "message": "", "hint": ""}


def inspect(config: RunConfig) -> dict[str, Any]:
    """Prepare and describe a run's text; return a `ProjectError` as `refusal` instead of raising it."""
    try:
        prepared = prepare(config)
        # The text is tokenized before torch is imported: a first launch waits for it.
        from neobert.data.store.contents import describe

        return {"refusal": NO_REFUSAL, "prepared": describe(config, prepared)}
    except ProjectError as error:
        refusal = {"code": error.code, "message": error.located_message, "hint": error.hint}
        return {"refusal": refusal, "prepared": None}


if __name__ == "__main__":
    exit_process(serve(lambda content: inspect(from_dict(content)), sys.argv[1:]))

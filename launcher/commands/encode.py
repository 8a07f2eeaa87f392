"""`encode`: texts to a file of embeddings, in a child process."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from launcher.commands.data import deliver_report
from launcher.commands.selection import require_working_directory
from launcher.io.files import require_writable
from launcher.process.json_child import ask
from neobert.errors import EXIT_OK

MODULE = "neobert.encoding"
HINT = "see the output above; if memory ran out, lower --max-length. The same command continues the job"


@dataclass(frozen=True, slots=True)
class Request:
    """Arguments of the command. None: as the folder declares it, or as the machine prefers it."""

    folder: Path
    texts: Path
    output: Path
    column: str | None
    split: str
    pooling: str | None
    normalize: bool | None
    max_length: int | None
    dtype: str | None
    processes: int | None
    texts_per_shard: int


def run(request: Request, output_format: str) -> int:
    """Encode, and print where the embeddings are and what became of the texts."""
    require_working_directory()
    require_writable(request.output.absolute())
    content = asdict(request) | {
        name: str(getattr(request, name).expanduser().absolute()) for name in ("folder", "texts", "output")
    }
    deliver_report(ask(MODULE, content, hint=HINT), output_format)
    return EXIT_OK

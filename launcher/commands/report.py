"""`report`: one run, or a comparison of two, as an HTML file."""

from __future__ import annotations

from pathlib import Path

from launcher.commands.status import require_run
from launcher.htmlreport.page import write_page
from launcher.htmlreport.run_record import read_run
from launcher.io.files import require_writable, write_text
from launcher.terminal import console
from launcher.terminal.activity import activity
from neobert.errors import EXIT_OK
from neobert.printable import printable

FILE, FILE_OF_TWO = "report.html", "compare.html"


def run(folder: Path, compare: Path | None, output: Path | None) -> int:
    """Write the HTML report and print its path; `output` None writes into the folder of the first run."""
    folders = [folder] if compare is None else [folder, compare]
    for each in folders:
        require_run(each)
    path = output or folder / (FILE if compare is None else FILE_OF_TWO)
    require_writable(path, "pass another file with --output")
    with activity(f"reading {', '.join(map(str, folders))}"):
        page = write_page([read_run(each) for each in folders])
    write_text(path, page)
    console.write(printable(str(path.absolute())))
    return EXIT_OK

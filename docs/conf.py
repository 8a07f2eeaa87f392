"""Sphinx: `make site` writes the documentation to build/site, which opens from the disk without a network."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from reference_pages import write_pages  # noqa: E402

from neobert import __version__  # noqa: E402

project, author = "neobert-launch", "the authors of neobert-launch"
version = release = __version__
extensions = ["myst_parser"]
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 4
highlight_language = "text"  # a block without a language is output, or commands
exclude_patterns = ["measurements", "figures"]
html_theme = "furo"
html_static_path = ["code.css", "copy.js"]
html_css_files = ["code.css"]
html_js_files = [("copy.js", {"defer": "defer"})]
html_title = f"neobert-launch {version}"
html_show_sourcelink = False
html_copy_source = False
html_show_copyright = False
html_show_search_summary = False  # a page on the disk may not fetch another


def setup(app: Any) -> None:
    """Generate the reference from the code before the pages are read."""
    app.connect("builder-inited", lambda _: write_pages(HERE))

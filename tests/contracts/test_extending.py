"""What docs/extending.md says is in a file is there under that name, for somebody who has the page alone."""

import re

import pytest

from tests.contracts.sources import ROOT

PAGE = " ".join((ROOT / "docs" / "extending.md").read_text(encoding="utf-8").split())
NAMED = re.findall(r"`(\w+)`,? (?:of |\()`((?:neobert|launcher|tests|validators)/[\w/]+\.py)`", PAGE)


@pytest.mark.parametrize(("name", "file"), NAMED)
def test_a_name_of_the_page_is_in_its_file(name, file):
    assert re.search(rf"\b{name}\b", (ROOT / file).read_text(encoding="utf-8"))


def test_the_page_names_what_is_in_files():
    assert len(NAMED) >= 8

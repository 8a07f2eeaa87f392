"""Text from outside in a model card is shown as it is."""

import pytest

from neobert.export.markdown import escape_markdown


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("LABEL_0", "LABEL_0"),
        ("_a_ __b", r"\_a\_ \_\_b"),
        ("*ok* [x](y)", r"\*ok\* \[x\](y)"),
        ("<b>&", "&lt;b&gt;&amp;"),
        ("a|b # c", r"a\|b \# c"),
        (3, "3"),
    ],
)
def test_markup_is_escaped(text, written):
    assert escape_markdown(text) == written

"""The corpus has prose only, each paragraph once, and nothing of a held-out package in the training text."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import sys
import zipfile
from dataclasses import replace

import pytest
from corpus import build, packages
from corpus.overlap import shared_grams
from corpus.packages import PIP, TEST, TRAIN, CorpusError, Package
from corpus.prose import paragraphs

LONG = "This paragraph has more than twelve words, as it has to, and it is new to the corpus"
OTHER = "Another paragraph that is long enough to be kept says something else about another matter"
PAGE = f"""<html><head><title>{OTHER}</title></head><body><nav><p>{OTHER} of the menu</p></nav>
<p>{LONG} <code>x = 1</code> &amp; more.</p>
<pre>for each in range(3): print(each, each, each, each, each, each, each)</pre>
<ul><li>Too short to keep.</li><li>{OTHER}.</li></ul></body></html>"""
POD = "\n\n".join(
    [
        "=head1 NAME and nothing of it has to be kept, of all these words",
        f"{LONG} C<code>, I<B<bold>>.",
        f"    {OTHER}",
    ]
)


def test_prose_is_told_from_code_and_menus():
    assert list(paragraphs("a.html", PAGE.encode())) == [f"{LONG} x = 1 & more.", f"{OTHER}."]
    assert list(paragraphs("a.pod", POD.encode())) == [f"{LONG} code, bold."]
    service = {"operations": {"List": {"documentation": f"<p>{LONG}</p>", "name": OTHER}}}
    assert list(paragraphs("service-2.json.gz", gzip.compress(json.dumps(service).encode()))) == [LONG]
    signs = "a1 -> b2 :: c3 == d4 != e5 <= f6 >= g7 && h8 || i9 ++ j10 -- k11 ** l12"
    assert list(paragraphs("b.html", f"<p>{signs}</p>".encode())) == []


def test_shared_grams_are_counted_once():
    words = [
        "one",
        "two",
        "three",
        "four",
        "five",
        "six",
        "seven",
        "eight",
        "nine",
        "ten",
        "eleven",
        "twelve",
        "thirteen",
        "fourteen",
    ]
    assert shared_grams([words, words], [["zero", *words[:13]]]) == 0.5
    assert shared_grams([words[:12]], [words]) == 0.0


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """Two packages as wheels, where a download would put them."""
    folder = tmp_path / "out" / "packages"
    folder.mkdir(parents=True)
    found = []
    for name, side, text in (("first", TRAIN, [LONG, OTHER]), ("second", TEST, [OTHER])):
        content = io.BytesIO()
        with zipfile.ZipFile(content, "w") as archive:
            archive.writestr("docs/page.html", "".join(f"<p>{each}</p>" for each in text))
            archive.writestr("docs/code.py", "x = 1")
        (folder / f"{name}-1.0-py3-none-any.whl").write_bytes(content.getvalue())
        digest = hashlib.sha256(content.getvalue()).hexdigest()
        found.append(Package(name, "1.0", digest, PIP, side, "letters", ".html"))
    monkeypatch.setattr(build, "PACKAGES", tuple(found))
    monkeypatch.setattr(sys, "argv", ["build.py", str(tmp_path / "out")])
    return tmp_path / "out", found


def texts(path):
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_a_paragraph_of_a_held_out_package_is_not_in_the_training_text(archives, capsys):
    out, _ = archives
    build.main()
    assert texts(out / "train" / "first.jsonl") == [LONG]
    assert texts(out / "test" / "second.jsonl") == [OTHER]
    assert "test second: 0.00% of its 13-grams (words) are in the training text" in capsys.readouterr().out


def test_another_content_than_the_pinned_one_is_refused(archives):
    out, (first, _) = archives
    with pytest.raises(CorpusError, match=r"has SHA-256 .*, not 00: delete the file"):
        packages.fetch(replace(first, sha256="00"), out / "packages")


def test_a_version_that_is_gone_is_named(archives, monkeypatch):
    out, (first, _) = archives
    failed = packages.subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution\n")
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(CorpusError, match=r"first 2\.0 could not be downloaded: ERROR: No matching"):
        packages.fetch(replace(first, version="2.0"), out / "packages")


def test_sides_and_domains_are_apart():
    sides = {each.side for each in packages.PACKAGES}
    assert sides == {TRAIN, packages.VALIDATION, TEST}
    held_out = {each.domain for each in packages.PACKAGES if each.side != TRAIN}
    assert held_out.isdisjoint({each.domain for each in packages.PACKAGES if each.side == TRAIN})
    assert all(len(each.sha256) == 64 for each in packages.PACKAGES)

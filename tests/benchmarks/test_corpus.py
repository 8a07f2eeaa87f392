"""The corpus has prose only, each paragraph once, and nothing of a held-out package in the training text."""

import gzip
import hashlib
import json
import random
import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace

import pytest
from corpus import build, packages
from corpus.overlap import shared_ngram_shares
from corpus.packages import APT, PIP, TEST, TRAIN, CorpusError, Package
from corpus.prose import paragraphs

LONG = "This paragraph has more than twelve words, as it has to, and it is new to the corpus"
OTHER = "Another paragraph that is long enough to be kept says something else about another matter"
PAGE = f"""<html><head><title>{OTHER}</title></head><body><nav><p>{OTHER} of the menu</p></nav>
<p>{LONG} <code>x = 1</code> &amp; more.</p>
<pre>for each in range(3): print(each, each, each, each, each, each, each)</pre>
<ul><li>Too short to keep.</li><li>{OTHER}.</li></ul></body></html>"""
POD = f"""=head1 NAME and nothing of it has to be kept, of all these many words

{LONG} C<code>, I<B<bold>> E<lt>1E<gt> C<< $a->{{b}} >> L<here|perlop> E<233>.

    {OTHER} which is code

=begin comment

{OTHER} of nobody

=end comment

=cut

{OTHER} of a program

=head2 AGAIN

{OTHER}."""
DICTIONARY = f"""Word \\Word\\, n. [L. {OTHER}
   and [more] of it.]
   {LONG}. [1913 Webster]

   See {{other}}.
Another \\An*other\\
   Too short to keep."""


def test_prose_is_told_from_code_and_menus():
    assert list(paragraphs("a.html", PAGE.encode())) == [f"{LONG} x = 1 & more.", f"{OTHER}."]
    signs = "a1 -> b2 :: c3 == d4 != e5 <= f6 >= g7 && h8 || i9 ++ j10 -- k11 ** l12"
    assert list(paragraphs("b.html", f"<p>{signs}</p>".encode())) == []


def test_a_long_heading_is_a_signature():
    page = f"<section><h4>pub fn {OTHER} <div>of a <b>trait</b></div></h4></section><p>{LONG}</p>"
    assert list(paragraphs("struct.html", page.encode())) == [LONG]


def test_pod_codes_are_resolved_and_programs_left_out():
    text = [f"{LONG} code, bold <1> $a->{{b}} here é.", f"{OTHER}."]
    assert list(paragraphs("a.pod", POD.encode())) == text


def test_descriptions_in_json_are_read():
    service = {"operations": [{"List": {"documentation": f"<p>{LONG}</p>", "name": OTHER}}]}
    assert list(paragraphs("service-2.json.gz", gzip.compress(json.dumps(service).encode()))) == [LONG]
    document = {"description": OTHER, "schemas": {"description": {"description": LONG}}}
    assert list(paragraphs("documents/a.v1.json", json.dumps(document).encode())) == [OTHER, LONG]


def test_an_entry_of_a_dictionary_is_a_paragraph():
    assert list(paragraphs("a.dict.dz", gzip.compress(DICTIONARY.encode()))) == [f"{LONG}. See other."]


def naive_share(held_out, training):
    """Compare each 13 words with each others, as lists of lower-case words."""

    def runs(texts):
        for text in texts:
            words = "".join(each if each.isalnum() else " " for each in text.lower()).split()
            yield from (words[first : first + 13] for first in range(len(words) - 12))

    distinct: list[list[str]] = []
    for run in runs(held_out):
        if run not in distinct:
            distinct.append(run)
    there = list(runs(training))
    return sum(run in there for run in distinct) / max(1, len(distinct))


def test_overlap_is_that_of_a_naive_count():
    draw = random.Random(0)
    words = ["The", "the", "cat,", "cat", "sat.", "(on)"]
    training = [" ".join(draw.choices(words, k=40)) for _ in range(5)]
    copied = training[0].upper().replace(",", ";")
    held_out = {
        "copied": [copied, copied],
        "half": [copied[:60] + " a dog " + copied[60:]],
        "short": ["only a few words"],
        "new": [" ".join(str(each) for each in range(30))],
    }
    found = shared_ngram_shares(held_out, training)
    assert found == {name: naive_share(texts, training) for name, texts in held_out.items()}
    assert found["copied"] == 1
    assert 0 < found["half"] < 1


@pytest.fixture
def archives(tmp_path, monkeypatch):
    """A Debian package and a wheel where a download would put them, and the rows of both."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb, which reads packages of Debian, is not installed")
    folder = tmp_path / "out" / "packages"
    folder.mkdir(parents=True)
    tree = tmp_path / "tree"
    (tree / "DEBIAN").mkdir(parents=True)
    control = "Package: first\nVersion: 1:1.0-1\nArchitecture: all\nMaintainer: a <a@b.c>\nDescription: d\n"
    (tree / "DEBIAN" / "control").write_text(control)
    (tree / "page.html").write_text(f"<p>{LONG}</p><p>{OTHER}</p>")
    (tree / "it" / "page.html").parent.mkdir()
    (tree / "it" / "page.html").write_text(f"<p>{LONG} in Italian</p>")
    deb = folder / "first_1%3a1.0-1_all.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-b", str(tree), str(deb)], check=True)
    wheel = folder / "second-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("docs/page.html", f"<p>{OTHER.upper()}</p>")
        archive.writestr("docs/code.py", f"<p>{LONG} of code</p>")
    rows = [
        Package("first", "1:1.0-1", APT, TRAIN, "letters", r"(?<!/it)/\w+\.html$", of(deb), lines(LONG)),
        Package("second", "1.0", PIP, TEST, "words", r"\.html$", of(wheel), lines(OTHER.upper())),
    ]
    monkeypatch.setattr(build, "PACKAGES", rows)
    monkeypatch.setattr(sys, "argv", ["build.py", str(tmp_path / "out")])
    return tmp_path / "out", rows


def of(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


def lines(*texts):
    """Return the digest of documents of these texts."""
    return hashlib.sha256("".join(json.dumps({"text": text}) + "\n" for text in texts).encode()).hexdigest()


def texts(path):
    return [json.loads(line)["text"] for line in path.read_text().splitlines()]


def test_a_paragraph_of_a_held_out_package_is_not_in_the_training_text(archives):
    out, _ = archives
    build.main()
    assert texts(out / "train" / "first.jsonl") == [LONG]
    assert texts(out / "test" / "second.jsonl") == [OTHER.upper()]
    files = json.loads((out / "corpus.json").read_text())["files"]
    assert files["first"] == {
        "name": "first",
        "version": "1:1.0-1",
        "client": APT,
        "side": TRAIN,
        "domain": "letters",
        "files": r"(?<!/it)/\w+\.html$",
        "sha256": of(out / "packages" / "first_1%3a1.0-1_all.deb"),
        "text_sha256": of(out / "train" / "first.jsonl"),
        "documents": 1,
        "bytes": len(LONG),
    }
    assert files["second"]["shared_13_grams"] == 0


def test_a_text_that_is_not_the_pinned_one_is_named(archives, monkeypatch):
    out, (first, second) = archives
    monkeypatch.setattr(build, "PACKAGES", [first, replace(second, text_sha256="00")])
    with pytest.raises(CorpusError, match=r"^the text of second is not the pinned text"):
        build.main()
    assert texts(out / "test" / "second.jsonl") == [OTHER.upper()], "the text is there to look at"


def test_a_long_document_is_cut(archives, monkeypatch):
    out, (first, _) = archives
    monkeypatch.setattr(build, "MAX_PARAGRAPHS", 1)
    path = packages.package_file(first, out / "packages")
    assert build.read_documents(first, path) == [[LONG], [OTHER]]


def test_another_content_than_the_pinned_one_is_refused(archives):
    out, (first, _) = archives
    with pytest.raises(CorpusError, match=r"has SHA-256 .*, not 00\nhint: delete the file"):
        packages.fetch_package(replace(first, sha256="00"), out / "packages")


def test_a_version_that_is_gone_is_named(archives, monkeypatch):
    out, (first, _) = archives
    failed = packages.subprocess.CompletedProcess([], 1, "", "ERROR: No matching distribution\n")
    monkeypatch.setattr(packages.subprocess, "run", lambda *_, **__: failed)
    with pytest.raises(CorpusError, match=r"first 2\.0 could not be downloaded: ERROR: No matching"):
        packages.fetch_package(replace(first, version="2.0"), out / "packages")


def test_sides_and_domains_are_apart():
    sides = {each.side for each in packages.PACKAGES}
    assert sides == {TRAIN, packages.VALIDATION, TEST}
    held_out = {each.domain for each in packages.PACKAGES if each.side != TRAIN}
    assert held_out.isdisjoint({each.domain for each in packages.PACKAGES if each.side == TRAIN})
    digests = [digest for each in packages.PACKAGES for digest in (each.sha256, each.text_sha256)]
    assert {len(each) for each in digests} == {64}
    assert len(set(digests)) == len(digests)

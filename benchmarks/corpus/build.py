"""Build a corpus of English prose from packages, with whole packages held out.

    python benchmarks/corpus/build.py OUT [--only perl-doc ...] [--wikitext FILE]

Downloads what `packages.py` pins with apt-get and pip into OUT/packages, and writes OUT/SIDE/PACKAGE.jsonl
for the sides train, validation and test: a document per file, of its paragraphs with at least 12 words. A
paragraph is kept once, in the first of test, validation and train that has it. `--wikitext` takes a file of
another corpus (such as the test split of wikitext-2, plain or .gz) as OUT/test/wikitext.jsonl.
OUT/corpus.json has versions, domains, sizes and digests of all of them, and the share of the 13-grams of each
held-out package that the training text has too. OUT/train, OUT/validation and OUT/test are values of
`dataset.path`.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import platform
import re
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corpus.overlap import shared_ngram_shares
from corpus.packages import APT, PACKAGES, TEST, TRAIN, VALIDATION, CorpusError, Package, fetch_package
from corpus.prose import is_prose, paragraphs

SIDES = (TEST, VALIDATION, TRAIN)
"""Sides of the corpus; a paragraph that several have is kept in the first of them."""
WIKITEXT = "wikitext"
MAX_PARAGRAPHS = 200
"""Paragraphs of a document: a dictionary, which is one file, becomes several documents."""


def archive_members(package: Package, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield name and content of each text file in a package, without unpacking it to disk."""
    if package.client == APT:
        command = ["dpkg-deb", "--fsys-tarfile", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            with tarfile.open(fileobj=child.stdout, mode="r|") as archive:
                for member in archive:
                    if member.isfile() and re.search(package.files, member.name):
                        file = archive.extractfile(member)
                        assert file is not None
                        yield member.name, file.read()
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if re.search(package.files, name):
                yield name, archive.read(name)


def read_documents(package: Package, path: Path) -> list[list[str]]:
    """Return a package's documents: the prose paragraphs of each file, at most `MAX_PARAGRAPHS` in one."""
    found = [list(paragraphs(name, content)) for name, content in archive_members(package, path)]
    return [
        document[first : first + MAX_PARAGRAPHS]
        for document in found
        for first in range(0, len(document), MAX_PARAGRAPHS)
    ]


def read_wikitext(path: Path) -> list[list[str]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [[line.strip()] for line in content.decode("utf-8").splitlines() if is_prose(line)]


class SeenParagraphs:
    """Digests of the paragraphs written so far, to drop repeated ones."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def new_documents(self, documents: Iterable[list[str]]) -> Iterator[str]:
        """Yield the text of each document that has a new paragraph; case and whitespace are ignored."""
        for document in documents:
            if kept := [text for text in document if self._is_new(text)]:
                yield "\n".join(kept)

    def _is_new(self, text: str) -> bool:
        digest = hashlib.sha256(" ".join(text.lower().split()).encode()).digest()[:16]
        is_new = digest not in self._digests
        self._digests.add(digest)
        return is_new


def write_corpus(path: Path, texts: Sequence[str]) -> dict[str, Any]:
    """Write documents as JSON lines; return their number, their size and the digest of the file."""
    content = "".join(json.dumps({"text": text}) + "\n" for text in texts).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return {
        "documents": len(texts),
        "bytes": sum(len(text.encode()) for text in texts),
        "text_sha256": hashlib.sha256(content).hexdigest(),
    }


def build_corpus(out: Path, packages: Sequence[Package], other: Path | None) -> dict[str, dict[str, Any]]:
    """Write the test, validation and train files; return one record per file, in that order."""
    packages = sorted(packages, key=lambda each: SIDES.index(each.side))
    files = [fetch_package(each, out / "packages") for each in packages]
    seen, records, texts = SeenParagraphs(), dict[str, dict[str, Any]](), dict[str, list[str]]()

    def add(pinned: dict[str, Any], found: Iterable[list[str]]) -> None:
        side, name = pinned["side"], pinned["name"]
        texts[name] = list(seen.new_documents(found))
        records[name] = {**pinned, **write_corpus(out / side / f"{name}.jsonl", texts[name])}

    if other:
        add({"name": WIKITEXT, "side": TEST}, read_wikitext(other))
    with ProcessPoolExecutor() as pool:
        for package, found in zip(packages, pool.map(read_documents, packages, files), strict=True):
            add(asdict(package), found)
    held_out = {name: texts[name] for name, record in records.items() if record["side"] != TRAIN}
    training = [text for name in records if name not in held_out for text in texts[name]]
    for name, share in shared_ngram_shares(held_out, training).items():
        records[name]["shared_13_grams"] = share
    return records


def check_records(records: dict[str, dict[str, Any]], packages: Sequence[Package]) -> None:
    """Raise `CorpusError` if the texts of complete packages differ from their pinned digests."""
    if others := [each.name for each in packages if records[each.name]["text_sha256"] != each.text_sha256]:
        raise CorpusError(
            f"the text of {', '.join(others)} is not the pinned text: figures are not comparable\n"
            "hint: for an intended change, copy text_sha256 from corpus.json to benchmarks/corpus/packages.py"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument(
        "--only", nargs="+", choices=[each.name for each in PACKAGES], help="build these packages only"
    )
    parser.add_argument("--wikitext", type=Path, help="file of another corpus, for the test side")
    chosen = parser.parse_args()
    packages = [each for each in PACKAGES if not chosen.only or each.name in chosen.only]
    records = build_corpus(chosen.out, packages, chosen.wikitext)
    summary = {"python": platform.python_version(), "files": records}
    (chosen.out / "corpus.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")
    for name, record in records.items():
        print(f"{record['side']:10} {name:24} {record['bytes'] / 1e6:6.1f} MB {record['text_sha256']}")
        if "shared_13_grams" in record:
            print(f"{'':10} {record['shared_13_grams']:.2%} of its 13-grams are in the training text")
    # Without the other packages, a paragraph that they share is kept.
    if not chosen.only:
        check_records(records, PACKAGES)


if __name__ == "__main__":
    main()

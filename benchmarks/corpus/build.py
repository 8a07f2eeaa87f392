"""Build a corpus of English prose from packages, with whole packages held out.

    python benchmarks/corpus/build.py OUT [--only perl-doc ...] [--wikitext FILE] [--tokenizer tokenizer.json]

Downloads what `packages.py` pins with apt-get and pip into OUT/packages, and writes OUT/SIDE/PACKAGE.jsonl
for the sides train, validation and test: a document per file, of its paragraphs with at least 12 words. A
paragraph is kept once, in the first of test, validation and train that has it. `--wikitext` takes a file of
another corpus (such as the test split of wikitext-2, plain or .gz) as OUT/test/wikitext.jsonl. Prints the
size of each package, and how many 13-grams of the held-out sides the training text has too. OUT/train,
OUT/validation and OUT/test are values of `dataset.path`; the loss of a package is that of its file.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from corpus.overlap import GRAM, shared_grams
from corpus.packages import APT, PACKAGES, TEST, TRAIN, VALIDATION, Package, fetch
from corpus.prose import is_prose, paragraphs

SIDES = (TEST, VALIDATION, TRAIN)
"""In the order in which they get a paragraph that several have."""
WIKITEXT = "wikitext"


def members(package: Package, path: Path) -> Iterator[tuple[str, bytes]]:
    """Yield names and contents of the files of a package that are read; nothing is unpacked to disk."""
    if package.client == APT:
        command = ["dpkg-deb", "--fsys-tarfile", str(path)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as child:
            assert child.stdout is not None
            with tarfile.open(fileobj=child.stdout, mode="r|") as archive:
                for member in archive:
                    if member.isfile() and is_read(package, member.name):
                        file = archive.extractfile(member)
                        assert file is not None
                        yield member.name, file.read()
        return
    with zipfile.ZipFile(path) as archive:
        for name in sorted(archive.namelist()):
            if is_read(package, name):
                yield name, archive.read(name)


def is_read(package: Package, name: str) -> bool:
    return name.endswith(package.suffix) and package.within in name


class Seen:
    """Paragraphs so far, so that each is kept once."""

    def __init__(self) -> None:
        self._digests: set[bytes] = set()

    def is_new(self, text: str) -> bool:
        """Note a paragraph, case and white space ignored; tell whether it was new."""
        digest = hashlib.sha256(" ".join(text.lower().split()).encode()).digest()[:16]
        is_new = digest not in self._digests
        self._digests.add(digest)
        return is_new


def documents(package: Package, path: Path, seen: Seen) -> Iterator[list[str]]:
    """Yield the new paragraphs of each file of a package."""
    for name, content in members(package, path):
        if kept := [text for text in paragraphs(name, content) if seen.is_new(text)]:
            yield kept


def wikitext(path: Path, seen: Seen) -> Iterator[list[str]]:
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    for line in content.decode("utf-8").splitlines():
        if is_prose(line) and seen.is_new(line):
            yield [line.strip()]


def write(path: Path, found: Iterator[list[str]]) -> list[str]:
    """Write documents as JSON lines; return their texts."""
    texts = ["\n".join(document) for document in found]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts), encoding="utf-8")
    return texts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--only", nargs="+", choices=[each.name for each in PACKAGES], help="of the packages")
    parser.add_argument("--wikitext", type=Path, help="a file of another corpus, as another test")
    parser.add_argument("--tokenizer", type=Path, help="tokenizer.json, to count tokens with")
    chosen = parser.parse_args()
    seen, texts = Seen(), dict[tuple[str, str], list[str]]()
    if chosen.wikitext:
        path = chosen.out / TEST / f"{WIKITEXT}.jsonl"
        texts[TEST, WIKITEXT] = write(path, wikitext(chosen.wikitext, seen))
    packages = [each for each in PACKAGES if not chosen.only or each.name in chosen.only]
    for package in sorted(packages, key=lambda each: SIDES.index(each.side)):
        file = fetch(package, chosen.out / "packages")
        path = chosen.out / package.side / f"{package.name}.jsonl"
        texts[package.side, package.name] = write(path, documents(package, file, seen))
    report(texts, chosen.tokenizer)


def report(texts: dict[tuple[str, str], list[str]], tokenizer_path: Path | None) -> None:
    """Print sizes and overlap."""
    counts = dict.fromkeys(texts, "")
    if tokenizer_path:
        from tokenizers import Tokenizer

        tokenizer = Tokenizer.from_file(str(tokenizer_path))
        tokenizer.no_truncation()
        tokenizer.no_padding()
        for key, found in texts.items():
            tokens = sum(len(each.ids) for each in tokenizer.encode_batch_fast(found))
            counts[key] = f"{tokens:12,} tokens"
    domains = {each.name: each.domain for each in PACKAGES}
    for (side, name), found in texts.items():
        size = sum(len(text.encode()) for text in found) / 1e6
        parts = (f"{side:10} {name:18} {size:7.1f} MB {len(found):7,} documents", counts[side, name])
        print(*parts, domains.get(name, ""))
    training = [text.split() for (side, _), found in texts.items() if side == TRAIN for text in found]
    for (side, name), found in texts.items():
        if side != TRAIN and training:
            share = shared_grams([text.split() for text in found], training)
            print(f"{side} {name}: {share:.2%} of its {GRAM}-grams (words) are in the training text")


if __name__ == "__main__":
    main()

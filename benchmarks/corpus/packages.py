"""Packages of the corpus: their versions, digests, domains and sides.

A package is held out whole. When an archive replaces a version, the client finds it no more: name the new
version and its digest here, and the corpus is another one.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

TRAIN, VALIDATION, TEST = "train", "validation", "test"
APT, PIP = "apt", "pip"


@dataclass(frozen=True)
class Package:
    """A package of a Debian or a Python archive.

    Attributes:
        domain: what its text is about.
        suffix: ending of the files that are read.
        within: part of the path of the files that are read.
    """

    name: str
    version: str
    sha256: str
    client: str
    side: str
    domain: str
    suffix: str
    within: str = ""


PACKAGES = (
    Package(
        "anarchism", "15.3-3", "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948",
        APT, TEST, "politics and history", ".html",
    ),
    Package(
        "postgresql-doc-15", "15.18-0+deb12u1",
        "3c598277a463c44d672daa2c335deb8d8252e1852fb025fd4578ea2d9a1b90f0",
        APT, VALIDATION, "databases", ".html",
    ),
    Package(
        "linux-doc-6.1", "6.1.176-1", "0d843674607703b9ef8c1db5e715c38ed52ff23574feabfe0d961d552126859f",
        APT, TRAIN, "operating systems", ".html",
    ),
    Package(
        "botocore", "1.44.8", "76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043",
        PIP, TRAIN, "cloud services", "service-2.json.gz",
    ),
    Package(
        "rust-doc", "1.63.0+dfsg1-2", "96ef96fe6df87d939ca713bd7df3d15c2b778ccb892eca025c4ee504146f697b",
        APT, TRAIN, "programming in Rust", ".html",
    ),
    Package(
        "python3.11-doc", "3.11.2-6+deb12u8",
        "50eb63e7f636c4281e9ce1b8f10386f1def42159eddce34fc1f41c46261df71b",
        APT, TRAIN, "programming in Python", ".html",
    ),
    Package(
        "perl-doc", "5.36.0-7+deb12u3", "e9e3564ff5ade27de0585835f2acad769bcc545c0a0045a9f55d5401f27f7591",
        APT, TRAIN, "programming in Perl", ".pod",
    ),
)  # fmt: skip


class CorpusError(SystemExit):
    """A package cannot be had as it is pinned."""


def fetch(package: Package, folder: Path) -> Path:
    """Return the file of a package, downloaded by the ordinary client of its archive unless it is there."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := file_of(package, folder)):
        commands = {
            APT: ["apt-get", "download", "-q", f"{package.name}={package.version}"],
            PIP: [
                # Wheels only: pip would run the build of a source archive before its digest is checked.
                *(sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-q"),
                f"{package.name}=={package.version}",
            ],
        }
        done = subprocess.run(
            commands[package.client], cwd=folder, capture_output=True, text=True, check=False
        )
        if done.returncode or not (found := file_of(package, folder)):
            last = (done.stderr.strip() or "no file was written").splitlines()[-1]
            raise CorpusError(
                f"{package.name} {package.version} could not be downloaded: {last}\n"
                "hint: pin the version that the index has, with its digest, in benchmarks/corpus/packages.py"
            )
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise CorpusError(f"{found.name} has SHA-256 {digest}, not {package.sha256}: delete the file")
    return found


def file_of(package: Package, folder: Path) -> Path | None:
    version = package.version.replace(":", "%3a")
    form = {APT: f"{package.name}_{version}_*.deb", PIP: f"{package.name}-{version}-*.whl"}[package.client]
    return next(iter(sorted(folder.glob(form))), None)

"""Packages of the corpus: their versions, digests, domains and sides.

A package is held out whole. When an archive replaces a version, the client no longer finds it: enter the new
version and its digest here, which changes the corpus.
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
        files: a regular expression of the paths that are read.
        sha256: digest of the package.
        text_sha256: digest of its documents in a corpus of all packages.
    """

    name: str
    version: str
    client: str
    side: str
    domain: str
    files: str
    sha256: str
    text_sha256: str


PACKAGES = (
    Package(
        "anarchism", "15.3-3", APT, TEST, "politics and history", r"\.html$",
        "cf21c10948b00e923c62eb31c39a3390413fa26c5ee0e3b925feb0ec7fe42948",
        "c65a19b1aaa395b45f8874d957992cfeb69bf0cdc43d5042db4fc2babb457fc4",
    ),
    Package(
        "apache2-doc", "2.4.71-1~deb12u1", APT, TEST, "web servers", r"/en/.*\.html$",
        "a7b3d1131c1c63dbf9999b28e75f9a133d30f70492b419936bd51759ac77a01f",
        "13da56a9a950f5bd493ab0dcf547db534133c25eb7cba39a71d0639d86cd3e1b",
    ),
    Package(
        "postgresql-doc-15", "15.20-0+deb12u1", APT, VALIDATION, "databases", r"\.html$",
        "4c44bf2c599f208b3f46454a6cf7a72e25ec46ff74d37b59dd31ad76b00eebb7",
        "329675b3c13ab67e3aeb313490b58fe2d08a0937e650732b9df1b78ee6a7939d",
    ),
    Package(
        "gimp-help-en", "2.10.34-2", APT, VALIDATION, "pictures", r"/en/.*\.html$",
        "a2deec76763aaf2fcdd197bac0736cdcb0770ba993d48d233329e1c92b0bfe36",
        "6e05897d1b9ca804edd9edb3aa292bae6f7e51499a14bff9b5f54dfbaf50a0f6",
    ),
    Package(
        "dict-gcide", "0.48.5+nmu2", APT, TRAIN, "English words", r"\.dict\.dz$",
        "7b0af5cfde3cbdef5e9d6e78f92ec335ced7c2790f37a40f49bebc6f7347ac0f",
        "e8224d5b905e9d31323c1e70cded0570d79fa09dac931367bde6947a7d3ff9c5",
    ),
    Package(
        "dict-wn", "1:3.0-37", APT, TRAIN, "English words", r"\.dict\.dz$",
        "ed99e0bf162815dc1cc69de3727eedd7112ddf170badf83dbde26209e0724a8c",
        "1c7ea500dc3060be272da83dcb3ee7419a19eaef268417fc8198b8a779af8f91",
    ),
    Package(
        "dict-foldoc", "20230119-1", APT, TRAIN, "computing terms", r"\.dict\.dz$",
        "745cbedb55c2da609cc88ee0284e9d11a67a11ae3709daf7bad0e895ac3294c3",
        "8171ed4af3bf83d932a3d0a208764fbc9d4544340507f424638b1e7c2ebeda84",
    ),
    Package(
        "dict-jargon", "4.4.7-3.1", APT, TRAIN, "computing terms", r"\.dict\.dz$",
        "405f8168d7994ed2cb71407bb95493daec2e9aa66fc0461dafa74a9d6728a8c1",
        "4a5c80d57729af9d387bfc7f5003ddb385e42a63744d4dd1febe8437f0e148b8",
    ),
    Package(
        "linux-doc-6.12", "6.12.117-1~deb12u1", APT, TRAIN, "operating systems",
        r"/html/(?!translations/).*\.html$",
        "6a73937ac1a8ab586b9399b6a67df3cc24e66e637824a97ca97b5f94b47ae40e",
        "3237a4066077df28852e383115787b99a31a11408c9aafdb47c2d6debd98d4aa",
    ),
    Package(
        "debian-handbook", "11.20220922", APT, TRAIN, "operating systems", r"/en-US/.*\.html$",
        "3d5dbeac1f1afc9c094eab9d0f701f6ecff99c4927d5a4794cf6c85678134faa",
        "0f488a0bd55429d2734e3a715c0982294de728e165b91905ae1ed41785ddd618",
    ),
    Package(
        "botocore", "1.44.8", PIP, TRAIN, "cloud services", r"service-2\.json\.gz$",
        "76342a76c338701db80dcb8afe1c9bd079283d6fffbb9d881442abb02a215043",
        "ddff67791988c90bf5f86d7a470afa8f9b2573f929d4aefd86586bb476fdced5",
    ),
    Package(
        "google_api_python_client", "2.202.0", PIP, TRAIN, "cloud services", r"/documents/.*\.json$",
        "aaa90064c9bb642ff1d065b22ca8958a2cb6e345909cefe70d0e5452fc50e08b",
        "0e3d67c9bf078934adb46840e7121a53f64e574c0739980ee2cdb2cfacc2f19e",
    ),
    Package(
        "rust-doc", "1.63.0+dfsg1-2", APT, TRAIN, "programming in Rust", r"\.html$",
        "96ef96fe6df87d939ca713bd7df3d15c2b778ccb892eca025c4ee504146f697b",
        "334617934c222a313af7e77faa2df3fc5cc16de54aae18d71b8fbe558700c225",
    ),
    Package(
        "python3.11-doc", "3.11.2-6+deb12u9", APT, TRAIN, "programming in Python", r"\.html$",
        "5b3594189d6ef9a6963ce0347fd307a1cc67620ad697e144db366070e2e146be",
        "1e3a740e298b67930427da684aa9d8532b42b5d0263b7500bae58abc39fa0dd3",
    ),
    Package(
        "perl-doc", "5.36.0-7+deb12u4", APT, TRAIN, "programming in Perl", r"\.pod$",
        "f4269cff4576d6f02a6756df842988e58451c7e945b08517dd235531b24e48f8",
        "f4d4778ee31f2848d017ebe792a13ba6d542c2d10df10f246bd73eae75cf43b5",
    ),
    Package(
        "openjdk-17-doc", "17.0.21.1+2-1~deb12u1", APT, TRAIN, "programming in Java", r"\.html$",
        "3e04db24dbcb31d598774973998f1d8212e3424e288befbfef235077325f841d",
        "d2e05b2548d2da69baf94cce345ae94f5628478f9e7ad8fcbb4f488313bf2852",
    ),
    Package(
        "qtbase5-doc-html", "5.15.8+dfsg-11+deb12u3", APT, TRAIN, "programming in C++", r"\.html$",
        "e052497a7db970f002807e3543043c11e46135641b8284b0a419086ba64f5f47",
        "3de310d7ed4e1dc4a4f8f11ff913f214a74626d9b6a0db349bea1b33566dfe05",
    ),
    Package(
        "llvm-14-doc", "1:14.0.6-12", APT, TRAIN, "compilers", r"\.html$",
        "d83d576ccf39dd9c698f983677f5569284cb4d55f084dd135859a73d31910b1a",
        "ba507f718496136a18cad56db921a472dcef6d7d4676b0e065087efb368cb5f4",
    ),
    Package(
        "python-sklearn-doc", "1.2.1+dfsg-1", APT, TRAIN, "statistics", r"\.html$",
        "4e244556326064e87e7563e3e544c2288d44b5719db2d7b3a85c9a84ae93488d",
        "83555560816d804100ef7a8494676787ae920825c9868785155db4642a8e2a5b",
    ),
    Package(
        "python-scipy-doc", "1.10.1-2", APT, TRAIN, "mathematics", r"\.html$",
        "a237fdcef1675622f1a5d8a291c64feba140615130ee625554f94772d4ea3ad7",
        "84a32015e8229015319c14c289761f3f622def92b9badf351097d48f3c26bbe2",
    ),
)  # fmt: skip


class CorpusError(SystemExit):
    """Raised if a package cannot be obtained as pinned."""


def fetch_package(package: Package, folder: Path) -> Path:
    """Return a package's file; download it if `folder` lacks it. Raises `CorpusError` if that fails."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (found := package_file(package, folder)):
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
        if done.returncode or not (found := package_file(package, folder)):
            last = (done.stderr.strip() or "no file was written").splitlines()[-1]
            raise CorpusError(
                f"{package.name} {package.version} could not be downloaded: {last}\n"
                "hint: run `apt-get update`; if the archive has replaced the version, pin the new one and "
                "its digest in benchmarks/corpus/packages.py"
            )
    digest = hashlib.sha256(found.read_bytes()).hexdigest()
    if digest != package.sha256:
        raise CorpusError(
            f"{found} has SHA-256 {digest}, not {package.sha256}\nhint: delete the file and run this again"
        )
    return found


def package_file(package: Package, folder: Path) -> Path | None:
    version = package.version.replace(":", "%3a")
    form = {APT: f"{package.name}_{version}_*.deb", PIP: f"{package.name}-{version}-*.whl"}[package.client]
    return next(iter(sorted(folder.glob(form))), None)

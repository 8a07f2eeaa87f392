"""Consumers of an exported checkpoint, each run in an environment without this project.

    python benchmarks/consumers.py exported --python env/bin/python --older env457/bin/python

EXPORTED holds the folders hf, sentence-transformers, onnx and gguf-ready of `neobert-launch export`, of
profile cpu-demo with trainer.max_steps=60; that checkpoint as words-base; and as words the best one of
docs/token-classification.md with adapter.type=lora, model.pretrained_checkpoint and tokenizer.path of
words-base, and trainer.max_steps=300: so short a pretraining leaves more to the adapter. The environments
are throw-away ones with the libraries of the table. --model-tests names the tests of the source distribution
of the transformers that is installed there.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from measurement import write_measurement

HERE = Path(__file__).resolve().parent
CHECKS, TESTER = HERE / "consumer_checks", HERE / "model_tester.py"
LIMIT_S = 900
WORKS, REFUSED, FAILS = "works", "refused", "fails"
ROWS = {
    "auto_classes": "AutoModel and the heads of transformers",
    "meta_loading": "loading over the meta device, ten times",
    "pipeline_fill_mask": "pipeline fill-mask",
    "pipeline_feature_extraction": "pipeline feature-extraction",
    "pipeline_text_classification": "pipeline text-classification",
    "pipeline_token_classification": "pipeline token-classification",
    "pipeline_words": "pipeline token-classification, head and adapter of a run",
    "pipeline_question_answering": "pipeline question-answering",
    "transformers_trainer": "transformers.Trainer, masked language model",
    "peft_lora": "peft, LoRA of a classifier",
    "peft_of_a_run": "peft, `adapter/` of a run",
    "sentence_transformers_encode": "sentence-transformers, encode",
    "sentence_transformers_bare_tokenizer": "sentence-transformers, tokenizer",
    "sentence_transformers_trainer": "sentence-transformers, its trainer",
    "cross_encoder": "sentence-transformers, CrossEncoder",
    "multi_vector_encoder": "sentence-transformers, MultiVectorEncoder",
    "mteb_mock_run": "mteb, mock run",
    "onnx_runtime": "ONNX Runtime",
    "llama_cpp": "llama.cpp, model.gguf of gguf-ready",
    "llama_cpp_converter": "llama.cpp, its own converter by its rules",
}
OLDER = ("auto_classes", "meta_loading", "pipeline_fill_mask", "pipeline_question_answering")
STATED = {
    "llama_cpp_converter": "`export` writes the GGUF itself",
}
"""Consumers that compute something else, and the alternative: a difference is expected."""


LEFT_OUT = "one is left out: it loads a folder without weights, which is refused"


def main() -> int:
    """Run all checks; fails if one fails."""
    arguments = parse()
    rows = list(run_all(arguments))
    works = sum(row["result"] == WORKS for row in rows)
    write_measurement(
        arguments.output / "consumers.json", works, "consumers that work", None, {"consumers": rows}
    )
    for row in rows:
        print(f"{row['result']:8} {row['consumer']}: {row['evidence']}")
    return int(any(row["result"] == FAILS for row in rows))


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("exported", type=Path)
    parser.add_argument("--python", type=Path, required=True, help="interpreter with the libraries")
    parser.add_argument("--older", type=Path, help="interpreter with transformers 4.57")
    parser.add_argument("--model-tests", type=Path, help="tests of the source distribution of transformers")
    parser.add_argument("--only", nargs="*", choices=ROWS, help="these checks alone")
    parser.add_argument("--output", type=Path, default=HERE.parent / "docs" / "measurements")
    return parser.parse_args()


def run_all(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Run each check in its own process and folder."""
    for name in arguments.only or ROWS:
        yield run_check(name, ROWS[name], arguments.python, arguments.exported)
    if arguments.older:
        for name in OLDER:
            yield run_check(name, f"{ROWS[name]} (4.57)", arguments.older, arguments.exported)
    if arguments.model_tests:
        yield run_model_tests(arguments.python, arguments.model_tests, arguments.exported)


def run_check(name: str, consumer: str, python: Path, exported: Path) -> dict[str, Any]:
    """Run one check; its last line is its report."""
    with TemporaryDirectory() as work:
        command = [str(python.absolute()), "-I", str(CHECKS), name, str(exported.resolve()), work]
        done = run(command, work)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return {"consumer": consumer, "result": FAILS, "evidence": last[:300], "versions": {}}
    report = json.loads(done.stdout.splitlines()[-1])
    result = REFUSED if name in STATED else WORKS
    evidence = report["evidence"] + (f"; {STATED[name]}" if name in STATED else "")
    return {"consumer": consumer, "result": result, "evidence": evidence, "versions": report["versions"]}


def run(command: list[str], work: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command without network, GPU or settings of Python."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    offline = {"HF_HUB_OFFLINE": "1", "HF_MODULES_CACHE": f"{work}/modules", "CUDA_VISIBLE_DEVICES": ""}
    return subprocess.run(
        command, cwd=work, env={**kept, **offline, "TOKENIZERS_PARALLELISM": "false", **variables},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=LIMIT_S,
    )  # fmt: skip


def run_model_tests(python: Path, tests: Path, exported: Path) -> dict[str, Any]:
    """Run transformers' own tests of models on the exported code, from a copy of its tests."""
    with TemporaryDirectory() as work:
        copied = Path(work, "tests")
        shutil.copytree(tests, copied)
        # The source distribution lacks these packages; they test generation and exporters.
        for package, module, mixin in (
            ("generation", "test_utils", "GenerationTesterMixin"),
            ("exporters", "test_export", "ExportTesterMixin"),
        ):
            (copied / package).mkdir(exist_ok=True)
            (copied / package / "__init__.py").touch()
            (copied / package / f"{module}.py").write_text(f"class {mixin}:\n    pass\n", encoding="utf-8")
        (copied / "__init__.py").touch()
        shutil.copyfile(TESTER, copied / "test_exported_model.py")
        command = [str(python.absolute()), "-m", "pytest", "-q", "-rfE", "--tb=no", "-p", "no:cacheprovider"]
        done = run([*command, "tests/test_exported_model.py"], work, EXPORTED=str(exported.resolve() / "hf"))
    lines = done.stdout.strip().splitlines() or [done.stderr.strip()[-300:]]
    counts = re.sub(r" in [0-9.]+s.*", "", lines[-1])
    failed = [line.partition("::")[2] for line in lines if line.startswith(("FAILED", "ERROR"))]
    return {
        "consumer": "transformers' ModelTesterMixin",
        "result": FAILS if done.returncode else WORKS,
        "evidence": "; ".join([counts, LEFT_OUT, *failed]),
        "versions": {"transformers": version_of("transformers", python)},
    }


def version_of(distribution: str, python: Path) -> str:
    """Return the version that an interpreter has of a distribution."""
    program = f"import importlib.metadata as m; print(m.version({distribution!r}))"
    done = subprocess.run([python.absolute(), "-c", program], capture_output=True, text=True, check=True)
    return done.stdout.strip()


if __name__ == "__main__":
    raise SystemExit(main())

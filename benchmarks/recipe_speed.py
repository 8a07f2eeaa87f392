"""Time of a step in a recipe of low precision and in bf16, as a rehearsal compares them, and its verdict.

    python benchmarks/recipe_speed.py WORK_DIR [--parts wide narrow] [--recipe float8_rowwise] [--rehearse]
        [--output DIR]

One GPU; both sides are processes of their own, bf16 on the kernels that `kernel_backend: auto` chooses.
narrow: NeoBERT-250M as `h100-prod` trains it, packed rows of 1,024, 32,768 tokens a microbatch, both sides in
turns. wide: 24 blocks of width 2,048, 16,384 tokens a step, one side after the other. `preflight` judges the
facts of the comparison; with --rehearse it makes the whole rehearsal, which takes minutes more. The text is
that of `low_precision.py`. Figure of a part: bf16's time over that of the recipe. Needs the extra `torchao`;
on one H100 narrow takes 70 s and wide 140 s.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loss_parity import text_and_tokenizer
from measurement import write_measurement

from launcher.preflight.recipe_comparison import compare_recipe
from launcher.preflight.rehearsal_children import Stage
from launcher.probes.probe import IncompleteError
from profiles.registry import resolve_run

ROOT = Path(__file__).resolve().parents[1]
PREFLIGHT = [sys.executable, "-m", "launcher", "preflight", "run.json", "--json", "--level"]
RULES, TARGET = ("PRE011", "PRE012"), 1.03
WIDE = {"hidden_size": 2048, "num_hidden_layers": 24, "num_attention_heads": 32, "intermediate_size": 8064}
SMALL = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
ROWS, MICROBATCHES = {"narrow": 32, "wide": 16}, {"narrow": 2, "wide": 1}
"""Of 1,024 tokens in a microbatch, and microbatches of a step."""
STEPS = {"narrow": 100_000, "wide": 1_700_000}
"""With which the tokens suit the parameters: a run that fails a static check is not rehearsed."""


def sections(part: str, recipe: str, *, is_small: bool) -> dict[str, Any]:
    """Return the run file of a part."""
    text, words = text_and_tokenizer()
    rows, number = ROWS[part], MICROBATCHES[part]
    size = {
        "per_device_train_batch_size": rows,
        "per_device_eval_batch_size": rows,
        "gradient_accumulation_steps": number,
        "global_batch_size": number * rows,
        "max_steps": STEPS[part],
    }
    toy = {"max_steps": 40, "mixed_precision": "bf16"}
    return {
        "profile": "cpu" if is_small else "h100-prod",
        "pretraining": None,
        "model": {"kernel_backend": "auto"} | (SMALL if is_small else WIDE if part == "wide" else {}),
        "dataset": {"name": None, "config": None} | text | {"validation_split": 0.05},
        "tokenizer": {"name": None, "revision": None} | words,
        "torchao": {"enable": True, "recipe": recipe},
        "trainer": {"output_dir": "run"} | (toy if is_small else size),
    }


def rehearsed(folder: Path) -> dict[str, Any]:
    """Rehearse the run; return the times, and what the rules say of them."""
    failed, found = preflight(folder, "static,rehearsal", "--save-facts", "facts.json")
    facts = json.loads((folder / "facts.json").read_text("utf-8")) if (folder / "facts.json").exists() else {}
    return {"low_precision": (facts.get("rehearsal") or {}).get("low_precision"), "failed": failed, **found}


def compared(folder: Path, *, has_room: bool) -> dict[str, Any]:
    """Compare the run with bf16, and nothing else; return the times, and what the rules say of them.

    `has_room`: whether the GPU holds both sides at once.
    """
    os.chdir(folder)
    config = resolve_run(None, [Path("run.json")], []).config
    try:
        facts = asdict(compare_recipe(Stage(folder, 1, 0.0), config, lambda *_: None, has_room=has_room))
    except IncompleteError as error:
        return {"low_precision": None, "error": str(error)}
    rehearsal = {"device": "cuda", "device_name": "", "num_ranks": 1, "duration_s": 1.0}
    known = {"schema_version": 1, "rehearsal": rehearsal | {"low_precision": facts}}
    (folder / "facts.json").write_text(json.dumps(known), encoding="utf-8")
    _, found = preflight(folder, "rehearsal", "--facts", "facts.json")  # other rules lack their facts
    return {"low_precision": facts, **found}


def preflight(folder: Path, level: str, *options: str) -> tuple[list[str], dict[str, Any]]:
    """Run the checks of a level; return the rules that fail, and those of measured precision."""
    paths = {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [*PREFLIGHT, level, *options]
    log = folder / "progress.log"
    with log.open("w", encoding="utf-8") as progress:
        done = subprocess.run(
            command, cwd=folder, env=os.environ | paths, stdout=subprocess.PIPE, stderr=progress, text=True
        )
    start = done.stdout.find("{")
    if start < 0:
        return [], {"exit": done.returncode, "error": log.read_text("utf-8")[-3000:]}
    report = json.JSONDecoder().raw_decode(done.stdout[start:])[0]
    return sorted({each["code"] for each in report["findings"] if each["severity"] == "fail"}), {
        "rules": {each["id"]: each["status"] for each in report["checks"] if each["id"] in RULES},
        "findings": [each["message"] for each in report["findings"] if each["code"] in RULES],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("work", type=Path)
    parser.add_argument("--parts", nargs="+", choices=list(ROWS), default=["wide", "narrow"])
    parser.add_argument("--recipe", default="float8_rowwise")
    parser.add_argument("--rehearse", action="store_true", help="by the whole preflight")
    parser.add_argument("--small", action="store_true", help="a toy on a CPU")
    parser.add_argument("--output", type=Path, help="folder of the JSON file")
    chosen = parser.parse_args()
    output = chosen.output and chosen.output.resolve()
    for part in chosen.parts:
        folder = chosen.work.resolve() / part
        folder.mkdir(parents=True)
        values, began_s = sections(part, chosen.recipe, is_small=chosen.small), time.monotonic()
        (folder / "run.json").write_text(json.dumps(values), encoding="utf-8")
        found = rehearsed(folder) if chosen.rehearse else compared(folder, has_room=part == "narrow")
        facts = found["low_precision"]
        gain = round(facts["bf16_step_s"] / facts["recipe_step_s"], 4) if facts else None
        found |= {"gain": gain, "seconds": round(time.monotonic() - began_s)}
        print(part, json.dumps(found), flush=True)
        if output:
            path, detail = output / f"recipe-speed-{part}.json", {"config": values} | found
            unit, target = "bf16's step over the recipe's", TARGET if part == "wide" else None
            write_measurement(path, gain, unit, target, detail, is_complete=gain is not None)


if __name__ == "__main__":
    main()

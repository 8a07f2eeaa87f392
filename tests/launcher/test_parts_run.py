"""A text prepared in three parts, each by two processes, trains to the losses of one preparation."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.launcher.test_real_run import RUN_FILE, history

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]


def test_three_parts_train_to_the_losses_of_one_preparation(run_child, command):
    for number in range(5):
        words = [f"document {number} speaks of {each % 7} things" for each in range(40 + 20 * number)]
        Path("texts").mkdir(exist_ok=True)
        Path(f"texts/{number}.txt").write_text("\n\n".join(words), encoding="utf-8")
    run_file = RUN_FILE.replace("text.txt", "texts").replace("max_steps: 40", "max_steps: 20")
    Path("run.yaml").write_text(run_file, encoding="utf-8")
    assert command("tokenizer", "train", "-c", "run.yaml", "-o", "tok").code == 0
    tok = ("--set", "tokenizer.path=tok")
    for part in ("3/3", "1/3"):
        command(
            "data", "prepare", "run.yaml", *tok, "--part", part, "-o", "parts", "--dataset.num_proc=2"
        ).passed()
    host = ("--set", "dataset.cache_dir=parts")
    judged = command("preflight", "run.yaml", *tok, *host, "--level", "host")
    assert "DAT038" in judged.out
    assert "1 part is missing: part-2-of-3" in judged.out
    command("data", "join", "parts").refused(1, "`neobert-launch data prepare RUN --part 2/3 --output")
    # The hint, followed.
    command(
        "data", "prepare", "run.yaml", *tok, "--part", "2/3", "-o", "parts", "--dataset.num_proc=2"
    ).passed()
    joined = command("data", "join", "parts").passed()
    assert "3, joined" in joined.out

    def losses(folder: str, *changes: str) -> list[dict[str, Any]]:
        output = ("--set", f"trainer.output_dir={folder}", "--output-format", "json")
        run_child("train", "run.yaml", *tok, *changes, *output).passed()
        return history(Path(folder))

    one, other = losses("whole"), losses("in-parts", *host)
    assert len(one) == 21
    assert one == other
    samples = [json.loads(Path(folder, "resolved.json").read_text()) for folder in ("whole", "in-parts")]
    assert samples[0]["dataset"] != samples[1]["dataset"]

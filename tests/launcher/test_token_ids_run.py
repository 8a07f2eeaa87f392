"""Token ids of datatrove train to the losses of their text, and those of another tokenizer are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.data.token_shards import write_shard
from tests.launcher.test_real_run import RUN_FILE, history

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("warm")]

TOKENIZER = Path("tok/tokenizer.json")
TEXTS = [f"document {number} speaks of {number % 7} things" for number in range(300)]


@pytest.fixture
def ids(command: Callable[..., Any]) -> Path:
    """Return the folder of the token ids of a text, next to its run file."""
    Path("text.txt").write_text("\n\n".join(TEXTS), encoding="utf-8")
    run_file = RUN_FILE.replace("{vocab_size: 256}", "{path: tok}").replace("max_steps: 40", "max_steps: 20")
    Path("run.yaml").write_text(run_file, encoding="utf-8")
    command("tokenizer", "train", "run.yaml", "--tokenizer.path", "null", "-o", "tok").passed()
    encoded = Tokenizer.from_file(str(TOKENIZER)).encode_batch(TEXTS)
    return write_shard(Path("ids/00000.ds"), [each.ids for each in encoded]).parent


def test_token_ids_train_to_the_losses_of_their_text(ids, run_child):
    for folder, *changes in (("of-text",), ("of-ids", "--dataset.path", str(ids))):
        run_child("train", "run.yaml", "--trainer.output_dir", folder, *changes).passed()
    assert len(history(Path("of-ids"))) == 21
    assert history(Path("of-ids")) == history(Path("of-text"))


@pytest.mark.parametrize("part", [(), ("--part", "1/1")])
def test_ids_of_another_tokenizer_are_refused_by_preparation(ids, command, part):
    prepare = ("data", "prepare", "run.yaml", "--dataset.path", str(ids), *part, "-o", "prepared")
    own = TOKENIZER.read_text()
    content = json.loads(own)
    vocabulary = content["model"]["vocab"]
    vocabulary["another word"] = vocabulary.pop("speaks")
    TOKENIZER.write_text(json.dumps(content))
    command(*prepare).refused(1, "ids after decoding and tokenizing (at least 99%) [DAT002]")
    # The hint, followed.
    TOKENIZER.write_text(own)
    repeated = command(*prepare[:-1], "again").passed()
    assert "300 of 300 documents that were compared have the same ids" in repeated.out

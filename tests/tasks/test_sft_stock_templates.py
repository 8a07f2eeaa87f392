"""Stock chat templates of a folder outside the repository: their supervised text, or why they are refused.

NEOBERT_TEST_TEMPLATES names a folder of *.jinja files: trl ships one as trl/chat_templates. The table of
docs/chat-templates.md is of version 1.16.0.
"""

import os
import random
import re
from pathlib import Path
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from neobert.data.sources.rows import TEXT
from neobert.data.tokenize.encoding import SUPERVISED, segment_encoder
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.tokenizers import build_bundle
from neobert.tasks.sft.conversation import Conversation
from neobert.tasks.sft.encoder import ConversationEncoder, control_pattern
from neobert.tasks.sft.template import ChatTemplate
from tests.tasks.sft_templates import bytes_tokenizer

FOLDER = Path(os.environ.get("NEOBERT_TEST_TEMPLATES", "-"))
STOCK = sorted(file for file in FOLDER.glob("*.jinja") if not file.stem.endswith("_training"))
REWRITTEN = (
    "deepseek_r1_distill", "deepseekv3", "gptoss", "nemotron_3_5_lightning", "nemotron_3_nano",
    "nemotron_3_super", "nemotron_3_ultra", "qwen3", "qwen3_5_nothink", "qwen3_5_think", "qwen3_6",
)  # fmt: skip
REFUSED = {"glm4moe": "no-stop", **dict.fromkeys(REWRITTEN, "rewritten")}
NUM_CONVERSATIONS = 500
CONTROL = re.compile(r"<[^<>\s'\"{}=]{2,30}>|\[/?INST\]")
NOT_SPECIAL = re.compile("think|tool|function|parameter|response|arg|/")
LETTERS = "abc XYZ.,!?\n'\"{}%éß漢字🙂"
pytestmark = pytest.mark.skipif(
    not STOCK, reason="NEOBERT_TEST_TEMPLATES does not name a folder of templates"
)


def tokenizer_of(template: str) -> PreTrainedTokenizerFast:
    """Return a tokenizer of bytes with the control tokens that a template spells."""
    fast = PreTrainedTokenizerFast(
        tokenizer_object=bytes_tokenizer().backend_tokenizer, eos_token="</s>", bos_token="<s>"
    )
    spelled = {name for name in CONTROL.findall(template) if not NOT_SPECIAL.search(name)}
    fast.add_special_tokens({"additional_special_tokens": sorted(spelled)})
    return fast


def talks(draw: random.Random) -> list[dict[str, Any]]:
    """Return a conversation of one to four questions and answers."""

    def text() -> str:
        return "a" + "".join(draw.choices(LETTERS, k=draw.randint(0, 30))) + "z"

    roles = ("user", "assistant") * draw.randint(1, 4)
    return [{"role": role, "content": text()} for role in roles]


@pytest.mark.parametrize("file", STOCK, ids=lambda file: file.stem)
def test_a_stock_template_is_exact_or_refused(file):
    text, draw = file.read_text("utf-8"), random.Random(7)
    fast = tokenizer_of(text)
    special = tuple(token.content for token in fast.added_tokens_decoder.values() if token.special)
    names = (("eos_token", "</s>"), ("bos_token", "<s>"))
    template = ChatTemplate(text, names, special, "2024-07-26", "auto", "all")
    texts = segment_encoder(build_bundle(fast, "t"), 100_000, 1, "error", Framing())
    control = control_pattern(fast, text)
    encoder = ConversationEncoder.build(texts, template, control, None, neutralizes=False)
    conversations = [talks(draw) for _ in range(NUM_CONVERSATIONS)]
    encoded = encoder.encode([{TEXT: Conversation(each, []).to_json()} for each in conversations])
    faults = encoded.counts.faults
    print(file.stem, {kind: (each.count, each.detail) for kind, each in faults.items()}, encoded.counts.stops)
    assert set(faults) == ({REFUSED[file.stem]} if file.stem in REFUSED else set())
    if not faults:
        marks, starts = encoded.columns[SUPERVISED.name].astype(bool), [0, *encoded.lengths.cumsum()]
        for number, talk in enumerate(conversations):
            place = slice(starts[number], starts[number + 1])
            learned = fast.decode(encoded.tokens[place][marks[place]].tolist())
            pattern = ".*?".join(re.escape(each["content"]) + r"\s*(?:<[^<>]+>)+" for each in talk[1::2])
            assert re.fullmatch(rf".{{0,40}}?{pattern}", learned, re.DOTALL), learned

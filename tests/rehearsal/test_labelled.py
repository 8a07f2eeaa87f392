"""Labels of words over a new ModernBERT, whose head has logits of unit scale."""

import json
import random

SIZES = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}


def test_a_new_modernbert_learns_labels_of_words(rehearsal, tmp_path):
    draw = random.Random(0)
    words = [a + b + c for a in "bdfgklmnprst" for b in "aeiou" for c in "bdfgk"]
    rows = [draw.choices(words, k=draw.randint(3, 20)) for _ in range(400)]
    lines = [{"tokens": row, "tags": [["O", "B-X"][word in words[:9]] for word in row]} for row in rows]
    (tmp_path / "words.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    found = rehearsal(
        task="token_classification",
        token_classification={"label_names": ["O", "B-X"]},
        model={"type": "hf", "architecture": "modernbert", **SIZES},
        tokenizer={"vocab_size": 384},
        dataset={"path": str(tmp_path / "words.jsonl")},
        optimizer={"lr": 1e-3},
        datacollator={"pack_sequences": True},
    )
    assert found.failed == set()
    assert found.facts.learning.initial_loss > 0.8  # ln(2) is 0.69

"""Token ids of datatrove train as the text that they were made from, and files that cannot are refused."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.data.examples import load_examples
from neobert.data.sources.preview import preview_local_text
from neobert.data.sources.token_shards import TokenShard, TokenText
from neobert.data.store.contents import describe
from neobert.data.store.prepare import prepare
from neobert.data.tokenize.framing import Framing
from neobert.data.tokenize.token_agreement import compare_shards
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.errors import ProjectError
from neobert.tasks.specs import spec_of
from tests.data.conftest import Configure, sentences, write_jsonl
from tests.data.token_shards import write_shard

TEXTS = [*sentences(150), " ".join(sentences(20)), ""]


def encoder_of(config):
    return load_examples(config).encoder(load_tokenizer(config.tokenizer))


def ids_of(config, texts: Sequence[str]) -> list[list[int]]:
    return [list(ids) for ids in encoder_of(config).token_ids(texts)]


@pytest.fixture
def of_text(configure: Configure, tmp_path):
    write_jsonl(tmp_path / "text" / "a.jsonl", TEXTS)
    return configure(dataset__path=str(tmp_path / "text"), dataset__eval_samples=20)


@pytest.mark.parametrize("has_frames", [False, True])
@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_token_ids_are_prepared_as_the_text_that_they_come_from(
    configure, of_text, tmp_path, dtype, has_frames
):
    framing = encoder_of(of_text).framing
    documents = [framing.frame(ids) if has_frames else ids for ids in ids_of(of_text, TEXTS)]
    shard = write_shard(tmp_path / "tokens" / "00000_unshuffled.ds", documents, dtype=dtype)
    config = configure(dataset__path=str(shard.parent), dataset__eval_samples=20)
    expected, prepared = prepare(of_text), prepare(config)
    assert prepared.fingerprint == expected.fingerprint
    counts = [{**each.report["train"], "source": None, "column": None} for each in (expected, prepared)]
    assert counts[0] == counts[1]
    facts = describe(config, prepared)
    assert facts["token_ids"] == {"documents": len(TEXTS), "returned": len(TEXTS), "marked": 0}
    assert describe(of_text, expected)["token_ids"] == {}


@pytest.mark.parametrize(("start", "num_copies"), [(0, 7), (100, 0)])
def test_evaluation_documents_in_the_training_ids_are_counted(
    configure, of_text, tmp_path, start, num_copies
):
    documents = ids_of(of_text, TEXTS)
    write_shard(tmp_path / "tokens" / "train.ds", documents[:100])
    write_shard(tmp_path / "tokens" / "eval.ds", documents[start : start + 7])
    config = configure(dataset__path=str(tmp_path / "tokens"), dataset__eval_samples=None)
    seen = preview_local_text(config.dataset, spec_of(config).rows(config))
    # DAT033 judges the characters, before the text is prepared.
    assert (seen.shared_characters > 0, seen.left_out) == (num_copies > 0, ())
    assert prepare(config).report["eval"].get("copies_in_training", 0) == num_copies


def broken(path: Path, fault: str) -> None:
    """Break a complete shard."""
    index, metadata = (path.with_name(f"{path.name}.{name}") for name in ("index", "metadata"))
    if fault == "killed":
        index.unlink()
        metadata.unlink()
    elif fault == "truncated":
        path.write_bytes(path.read_bytes()[:-2])
    elif fault == "metadata":
        metadata.write_text("tokenizer.json|2\n7\n7 T")
    elif fault == "order":
        index.write_bytes(np.array([5, 3, path.stat().st_size // 2], "<u8").tobytes())
    else:
        index.write_bytes(index.read_bytes()[:-3])


FAULTS = {
    "killed": "metadata is missing",
    "truncated": "bytes, but its index ends at",
    "metadata": "its metadata counts 7",
    "order": "not in ascending order",
    "index": "index or metadata is damaged",
}


@pytest.mark.parametrize("fault", FAULTS)
def test_an_unfinished_shard_is_refused(configure, tmp_path, fault):
    whole = write_shard(tmp_path / "tokens" / "00000_unshuffled.ds", [[40, 41, 42]] * 50)
    assert len(TokenShard.open(whole).ends) == 50
    broken(whole, fault)
    with pytest.raises(ProjectError, match=FAULTS[fault]) as caught:
        prepare(configure(dataset__path=str(whole.parent), dataset__eval_samples=None))
    assert caught.value.code == "DAT001"
    assert "repeat the datatrove task" in caught.value.hint


def test_ids_of_another_tokenizer_are_found(of_text, tmp_path):
    encoder, documents = encoder_of(of_text), ids_of(of_text, TEXTS[:-1])
    shifted = [[each + 1 for each in ids] for ids in documents]
    found = compare_shards([write_shard(tmp_path / "shifted.ds", shifted)], encoder)
    assert found["returned"] < 0.9 * found["documents"]
    joined = [
        [*first, *encoder.framing.end, *second] for first, second in zip(documents, documents, strict=True)
    ]
    assert compare_shards([write_shard(tmp_path / "joined.ds", joined)], encoder)["marked"] == len(joined)


def test_ids_beyond_the_vocabulary_and_training_of_a_tokenizer_are_refused(configure, tmp_path):
    shard = write_shard(tmp_path / "tokens" / "a.ds", [[5, 60_000]] * 9)
    with pytest.raises(ProjectError, match="token id 60,000 is beyond the vocabulary") as caught:
        prepare(configure(dataset__path=str(shard), dataset__eval_samples=None))
    assert (caught.value.code, "tokenizer.path" in caught.value.hint) == ("DAT002", True)
    untrained = configure(dataset__path=str(shard), tokenizer__path=None, tokenizer__vocab_size=300)
    with pytest.raises(ProjectError, match="a tokenizer is trained on text"):
        prepare(untrained)


def test_files_of_datatrove_itself_are_read(configure, of_text, tokenizer_dir, tmp_path):
    pytest.importorskip("datatrove")
    from datatrove.data import Document
    from datatrove.pipeline.tokens import DocumentTokenizer

    tokenizer = shutil.copy(tokenizer_dir / "tokenizer.json", tmp_path / "tokenizer.json")
    step = DocumentTokenizer(str(tmp_path / "tokens"), str(tokenizer), shuffle_documents=False)
    step.run([Document(text, str(number)) for number, text in enumerate(TEXTS)])
    config = configure(dataset__path=str(tmp_path / "tokens"), dataset__eval_samples=20)
    assert prepare(config).fingerprint == prepare(of_text).fingerprint


@given(st.lists(st.integers(0, 2**32 - 1)))
def test_the_text_of_ids_has_them(ids):
    assert TokenText.from_ids(ids).ids() == ids


@given(st.lists(st.integers(7, 9)), st.sampled_from([(), (1,), (1, 2)]), st.sampled_from([(), (3,)]))
def test_a_frame_is_removed_with_or_without_its_halves(ids, start, end):
    framing = Framing(start, (), end)
    for framed in (ids, [*start, *ids], [*ids, *end], framing.frame(ids)):
        assert list(framing.remove_frame(framed)) == ids

import pytest
from hypothesis import given
from hypothesis import strategies as st

from neobert.data.sources.splits import evaluation_split, parse_split
from neobert.errors import ProjectError


@pytest.mark.parametrize(
    ("text", "total", "bounds"),
    [
        ("train", None, (0, None)),
        ("train[100:200]", None, (100, 200)),
        ("train[:7]", None, (0, 7)),
        ("train[7:]", None, (7, None)),
        ("train[:1%]", 1000, (0, 10)),
        ("train[50%:]", 7, (4, None)),
        ("train[-10:]", 25, (15, None)),
        ("train[-10%:]", 50, (45, None)),
        ("train[:-1]", 25, (0, 24)),
        ("train[:200]", None, (0, 200)),
        ("train[:200%]", None, None),
    ],
)
def test_slices_mean_what_they_mean_in_datasets(text, total, bounds):
    if bounds is None:
        with pytest.raises(ProjectError, match="more than the whole"):
            parse_split(text, "dataset.train_split")
        return
    split = parse_split(text, "dataset.train_split")
    assert split.name == "train"
    assert split.needs_total == (total is not None)
    assert split.resolve(total) == bounds


@given(st.integers(1, 500), st.integers(-100, 100), st.integers(-100, 100))
def test_percent_slices_agree_with_datasets(total, start, stop):
    from datasets import ReadInstruction

    spec = f"train[{start}%:{stop}%]"
    ours = parse_split(spec, "dataset.train_split").resolve(total)
    reference = ReadInstruction.from_spec(spec).to_absolute({"train": total})[0]
    assert list(range(*ours)) == list(range(total))[reference.from_ : reference.to]


@pytest.mark.parametrize(
    "text", ["", "train[", "train[1:2", "train[1]", "train+test", "train[a:b]", "train[1:2:3]", "tr ain"]
)
def test_what_is_no_split(text):
    with pytest.raises(ProjectError) as caught:
        parse_split(text, "dataset.eval_split")
    assert (caught.value.code, caught.value.place) == ("DAT001", "dataset.eval_split")


@pytest.mark.parametrize(
    ("names", "training", "expected"),
    [
        (("train", "test", "validation"), "train", "validation"),
        (("dev", "test", "train"), "train", "dev"),
        (("train", "dev"), "train", "dev"),
        (("train", "extra"), "train", None),
        (("test", "validation"), "validation", "test"),
    ],
)
def test_the_split_that_evaluates(names, training, expected):
    assert evaluation_split(names, training) == expected

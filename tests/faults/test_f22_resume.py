"""F22: resumed twice, with other workers, from a stream: the same samples, to the last bit."""

from pathlib import Path

import pytest

from neobert.errors import ProjectError
from tests.killed_run import killed_before

STREAM = {"streaming": True, "shuffle_buffer_size": 40}
SAVED_OFTEN = {"save_steps": 1, "save_total_limit": 0}


@pytest.mark.parametrize("dataset", [{}, STREAM], ids=["prepared", "streaming"])
def test_resumed_twice_with_other_workers_it_is_one_run(make_run, run, exact, dataset):
    whole = make_run("whole", dataset=dataset)
    run(whole)
    expected = exact(whole)
    saved_at_once = {**SAVED_OFTEN, "async_save": False}
    run_dir = make_run(dataset=dataset, trainer=saved_at_once)
    with killed_before(4):
        run(run_dir)
    make_run(dataset={**dataset, "num_workers": 0}, trainer=saved_at_once)
    with killed_before(3):
        run(run_dir)
    make_run(dataset={**dataset, "num_workers": 3, "prefetch_factor": 2}, trainer=saved_at_once)
    assert run(run_dir) == 0
    assert exact(run_dir) == expected


def test_the_same_text_in_another_place_is_the_same_run(make_run, run, exact, corpus, tmp_path):
    """What is compared is the fingerprint of the text; other text is refused wherever it is."""
    expected = exact(whole) if run(whole := make_run("whole")) == 0 else None
    run_dir = make_run(trainer={**SAVED_OFTEN, "async_save": False})
    with killed_before(4):
        run(run_dir)
    text = Path(corpus["path"]).read_text(encoding="utf-8")
    for moved, content in (("moved", text), ("other", text.replace("a", "e", 1))):
        (tmp_path / moved).mkdir()
        path = tmp_path / moved / "other name.jsonl"
        path.write_text(content, encoding="utf-8")
        make_run(dataset={"path": str(path)}, trainer={**SAVED_OFTEN, "async_save": False})
        if moved == "other":
            with pytest.raises(ProjectError, match=r"data fingerprint: .* \[CKP007\]"):
                run(run_dir)
        else:
            assert run(run_dir) == 0
            assert exact(run_dir) == expected


def test_another_text_buffer_is_another_order_and_refused(make_run, run):
    run_dir = make_run(dataset=STREAM, trainer={**SAVED_OFTEN, "async_save": False})
    with killed_before(3):
        run(run_dir)
    make_run(dataset={**STREAM, "shuffle_buffer_size": 41})
    with pytest.raises(ProjectError, match=r"dataset\.shuffle_buffer_size: 40 in the checkpoint, 41"):
        run(run_dir)

"""Earlier versions trained lower-cased tokenizers without accents, and had no keys for either."""

from typing import Any

from neobert.config import from_dict, to_dict
from neobert.config.removed_keys import LEGACY_DEFAULTS
from neobert.runfiles.continuation import tokenizer_differences, with_source_text
from profiles.registry import RecordedRun, resolve_run

RUN = resolve_run("cpu-demo")


def stored_by_an_earlier_version() -> dict[str, Any]:
    config = to_dict(RUN.config)
    of_today = ("algorithm", *(key.removeprefix("tokenizer.") for key in LEGACY_DEFAULTS))
    kept = {name: value for name, value in config["tokenizer"].items() if name not in of_today}
    return config | {"tokenizer": kept}


def test_a_run_that_is_resumed_trains_the_tokenizer_that_it_began_with():
    from neobert.data.tokenize.trained import trained_identity  # it imports transformers

    origins = {key: each._asdict() for key, each in RUN.origins.items() if key not in LEGACY_DEFAULTS}
    resumed = resolve_run(
        "cpu-demo", begun=RecordedRun("resolved.json", stored_by_an_earlier_version(), origins)
    )
    assert set(resumed.begun_with) == LEGACY_DEFAULTS.keys()
    # The name of the folder in the cache depends on it, which that version filled.
    assert trained_identity(resumed.config.tokenizer) == {"wordpiece": 4096}
    assert trained_identity(RUN.config.tokenizer) != {"wordpiece": 4096}


def test_the_text_of_a_run_that_is_continued_has_the_tokenizer_of_that_run():
    from neobert.data.tokenize.trained import trained_identity

    source = stored_by_an_earlier_version()
    assert trained_identity(with_source_text(RUN.config, source).tokenizer) == {"wordpiece": 4096}
    of_today = to_dict(RUN.config)
    assert with_source_text(from_dict(source), of_today).tokenizer == RUN.config.tokenizer
    other = tokenizer_differences(source, of_today)
    assert list(map(str, other)) == [
        "tokenizer.lowercase: true in the checkpoint, false in this run",
        "tokenizer.strip_accents: true in the checkpoint, false in this run",
    ]

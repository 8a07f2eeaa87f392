"""Text and tokenizers by name, where the hub does not answer."""

import logging
import socket

import datasets
import pytest
from huggingface_hub import constants
from transformers import AutoTokenizer

from neobert.config.schema import DatasetConfig, TokenizerConfig
from neobert.data.sources import hub
from neobert.data.sources.corpus import open_corpus
from neobert.data.tokenize.tokenizers import load_tokenizer
from neobert.errors import ProjectError

PROXIES = ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")


@pytest.fixture
def server(monkeypatch):
    """A hub at this machine's port, with nobody or somebody behind it."""
    for name in PROXIES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{listener.getsockname()[1]}")
        yield listener


def test_one_attempt_tells_whether_somebody_answers(server):
    assert hub.is_unreachable()
    server.listen()
    assert not hub.is_unreachable()


def test_what_lies_behind_a_proxy_is_left_to_it(server, monkeypatch):
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    assert not hub.is_unreachable()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    assert hub.is_unreachable()


def test_a_tokenizer_is_looked_for_in_the_cache_only_and_its_error_names_the_way_out(server, monkeypatch):
    requested = []

    def from_pretrained(name, **options):
        requested.append(options["local_files_only"])
        logging.getLogger("huggingface_hub.utils").warning("Retrying in 1s")
        raise OSError("not there")

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", from_pretrained)
    with pytest.raises(ProjectError) as caught:
        load_tokenizer(TokenizerConfig(name="nobody/nothing"))
    assert caught.value.hint == "no connection to the Hub: set tokenizer.path to a folder"
    server.listen()
    with pytest.raises(ProjectError) as caught:
        load_tokenizer(TokenizerConfig(name="nobody/nothing"))
    assert caught.value.hint == "check tokenizer.name and tokenizer.revision"
    assert requested == [True, False]


def test_a_data_set_is_looked_for_in_the_cache_only(server, monkeypatch):
    requested = []

    def load_dataset(*args, **options):
        requested.append((datasets.config.HF_HUB_OFFLINE, options["revision"]))
        raise ConnectionError("not there")

    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(ProjectError) as caught:
        open_corpus(DatasetConfig(name="nobody/nothing", revision="0ff1ce"))
    assert (caught.value.code, caught.value.place) == ("DAT001", "nobody/nothing@0ff1ce")
    assert "dataset.path to a file or folder, and dataset.name to null" in caught.value.hint
    assert (requested, datasets.config.HF_HUB_OFFLINE) == ([(True, "0ff1ce")], False)


def test_the_client_is_quiet_while_it_loads_and_not_after(caplog):
    client = logging.getLogger("huggingface_hub.utils._http")
    with hub.suppress_logs():
        client.warning("Retrying in 1s")
    assert caplog.records == []
    client.warning("Rate limited")
    assert [record.message for record in caplog.records] == ["Rate limited"]

"""The receipt covers one config for a while; anything else is refused by name."""

import json
import subprocess
import sys
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from neobert.errors import ProjectError
from neobert.receipt import (
    Receipt,
    VerifiedStart,
    explain_changes,
    explain_mismatch,
    read_receipt,
    require_receipt,
    with_digest,
    write_receipt,
)
from tests.refusals import refusal_of

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
RECEIPT = Receipt(
    config_digest="a" * 64,
    profile="cpu-demo",
    code_version="0.1.0",
    created_utc=NOW.isoformat(),
    expires_utc=(NOW + timedelta(hours=24)).isoformat(),
    verdict="pass",
    levels=("static", "host"),
    checks=({"id": "CKP001", "status": "pass"},),
    waivers=(),
    hostname="node",
    versions={"torch": "2.13.0"},
)


def test_reads_back_what_was_written(tmp_path):
    write_receipt(RECEIPT, tmp_path / "receipt.json")
    assert read_receipt(tmp_path / "receipt.json") == RECEIPT
    assert [path.name for path in tmp_path.iterdir()] == ["receipt.json"]


def test_covers_its_own_config_while_it_is_fresh(tmp_path):
    write_receipt(RECEIPT, tmp_path / "receipt.json")
    assert require_receipt(tmp_path / "receipt.json", "a" * 64, NOW + timedelta(hours=23)) == RECEIPT


@pytest.mark.parametrize(
    ("receipt", "digest", "hours", "named"),
    [
        (RECEIPT, "b" * 64, 1, "issued for config aaaaaaaaaaaa, but this run's config is bbbbbbbbbbbb"),
        (RECEIPT, "a" * 64, 24, "expired at"),
        (RECEIPT, "a" * 64, -1, "in the future"),
        (replace(RECEIPT, verdict="fail"), "a" * 64, 1, "verdict is fail"),
        (replace(RECEIPT, verdict="unknown"), "a" * 64, 1, "verdict is unknown"),
    ],
)
def test_names_the_one_thing_that_differs(tmp_path, receipt, digest, hours, named):
    now = NOW + timedelta(hours=hours)
    (reason,) = explain_mismatch(receipt, digest, now)
    assert named in reason
    write_receipt(receipt, tmp_path / "receipt.json")
    assert refusal_of(require_receipt, "RCP001", named, tmp_path / "receipt.json", digest, now).exit_code == 1


def test_names_every_difference_at_once():
    stale = replace(RECEIPT, verdict="fail")
    assert len(explain_mismatch(stale, "b" * 64, NOW + timedelta(hours=48))) == 3


def test_an_unguarded_run_starts_whatever_the_verdict():
    unguarded = replace(RECEIPT, verdict="fail", unguarded="somebody answers for it")
    assert explain_mismatch(unguarded, "a" * 64, NOW) == ()
    assert explain_mismatch(unguarded, "b" * 64, NOW)


def test_every_change_is_named_by_what_it_was_and_is():
    before = replace(RECEIPT, config={"seed": 1, "trainer": {"max_steps": 5}}, gpu_uuids=("GPU-1", "GPU-2"))
    now = replace(
        before,
        config={"seed": 1, "trainer": {"max_steps": 6}},
        versions={"torch": "2.13.0", "quack-kernels": "0.6"},
        gpu_uuids=("GPU-2",),
        code_diff_sha256="d" * 64,
    )
    assert explain_changes(before, before) == ()
    assert explain_changes(before, now) == (
        "trainer.max_steps was 5 and is 6",
        "the digest of uncommitted changes was none and is dddddddddddd",
        "quack-kernels was missing and is 0.6",
        "the set of GPUs was GPU-1, GPU-2 and is GPU-2",
    )


EDITS = [
    lambda content: content | {"verdict": "pass"},
    lambda content: content | {"expires_utc": "2099-01-01T00:00:00+00:00"},
    lambda content: content | {"config": {"trainer": {"max_steps": 6}}},
    lambda content: {name: value for name, value in content.items() if name != "sha256"},
]


@pytest.mark.parametrize("edit", EDITS)
def test_a_receipt_that_was_edited_is_a_refusal(tmp_path, edit):
    path = tmp_path / "receipt.json"
    write_receipt(replace(RECEIPT, verdict="fail"), path)
    assert read_receipt(path).verdict == "fail"
    path.write_text(json.dumps(edit(json.loads(path.read_text(encoding="utf-8")))), encoding="utf-8")
    refusal_of(read_receipt, "RCP001", "it was edited after it was issued", path)


def test_the_order_and_the_layout_of_a_receipt_are_free(tmp_path):
    path = tmp_path / "receipt.json"
    write_receipt(RECEIPT, path)
    content = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(dict(reversed(content.items()))), encoding="utf-8")
    assert read_receipt(path) == RECEIPT


def test_a_folder_whose_name_is_not_utf8_is_read_as_it_is(tmp_path):
    receipt = replace(RECEIPT, start=VerifiedStart(5, "/runs/caf\udce9/\U0001f600/5"))
    write_receipt(receipt, tmp_path / "receipt.json")
    assert read_receipt(tmp_path / "receipt.json") == receipt


def test_a_measurement_that_is_none_is_a_refusal(tmp_path):
    write_receipt(replace(RECEIPT, measured=[1.0]), tmp_path / "receipt.json")
    refusal_of(read_receipt, "RCP001", "measured should be an object, got [1.0]", tmp_path / "receipt.json")


def test_a_missing_receipt_is_a_refusal(tmp_path):
    refusal_of(read_receipt, "RCP001", "there is no receipt", tmp_path / "receipt.json")


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"schema_version": 99}', '{"schema_version": 1}'])
def test_a_broken_receipt_is_a_refusal(tmp_path, text):
    (tmp_path / "receipt.json").write_text(text, encoding="utf-8")
    with pytest.raises(ProjectError, match="RCP001"):
        read_receipt(tmp_path / "receipt.json")


def test_a_date_without_a_zone_is_a_refusal(tmp_path):
    write_receipt(replace(RECEIPT, expires_utc="2026-01-02T12:00:00"), tmp_path / "receipt.json")
    refusal_of(read_receipt, "RCP001", "no time zone", tmp_path / "receipt.json")


def test_unknown_fields_are_a_refusal(tmp_path):
    write_receipt(RECEIPT, tmp_path / "receipt.json")
    content = json.loads((tmp_path / "receipt.json").read_text(encoding="utf-8"))
    content = with_digest(content | {"signed_by": "nobody"})
    (tmp_path / "receipt.json").write_text(json.dumps(content), encoding="utf-8")
    refusal_of(read_receipt, "RCP001", "signed_by", tmp_path / "receipt.json")


@pytest.mark.child
def test_imports_nothing_heavy():
    code = "import sys, neobert.receipt; sys.exit(bool({'torch', 'numpy'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_edited_file_of_a_plugin_is_named():
    configs = ({"plugins": {"code": [f"{digit * 64}  a.py", f"{'3' * 64}  b.py"]}} for digit in "12")
    issued, present = (replace(RECEIPT, config=config) for config in configs)
    assert explain_changes(issued, present) == (f"plugins.code a.py was {'1' * 12} and is {'2' * 12}",)

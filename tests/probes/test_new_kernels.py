"""An entry in the table of kernels is all that a new attention kernel needs for its numerical checks."""

import dataclasses
import json

import pytest

from neobert.kernel_table import ANY_DTYPE, ATTENTION, AttentionKernel
from neobert.model import configuration_neobert
from neobert.probes.numerics import suite
from neobert.probes.numerics.suite import run_suite
from validators.facts_io import parse_record
from validators.facts_numerics import NumericsFacts
from validators.numerics_faults import FAULTS, count_detected_faults


def _replace_unchecked(config, key, value):
    name = key.removeprefix("model.")
    return dataclasses.replace(config, model=dataclasses.replace(config.model, **{name: value}))


@pytest.fixture
def add_kernel(monkeypatch):
    """Put an attention kernel of `new_kernels` into the table, under its function's name."""

    def add(name):
        loader = f"tests.probes.new_kernels:{name}"
        entry = AttentionKernel(
            name=name, needs_cuda=False, dtypes=ANY_DTYPE, loader=loader, is_varlen=False,
            program="loop", is_deterministic=True,
        )  # fmt: skip
        monkeypatch.setitem(ATTENTION, name, entry)
        # These were computed when the modules were imported, as the choices of the schema were.
        for module, names in (
            (suite, "ATTENTION_CHOICES"),
            (configuration_neobert, "ATTENTION_BACKENDS"),
        ):
            monkeypatch.setattr(module, names, (*getattr(module, names), name))
        monkeypatch.setattr(suite, "replace", _replace_unchecked)

    return add


def test_a_kernel_of_the_table_is_probed_with_its_planted_faults(add_kernel, configured):
    for name in ("by_formula", "leaking"):
        add_kernel(name)
    answer = run_suite(configured(), "cpu", every=True)
    numerics = parse_record(NumericsFacts, json.loads(json.dumps(answer, allow_nan=False)))
    paths = {path.attention: path for path in numerics.paths}
    assert paths.keys() >= {"sdpa", "by_formula", "leaking"}
    for name, path in paths.items():
        assert (path.dispatched, path.error) == (name, "")
        faults = {probe: list(check(path, path.probes)) for probe, check in FAULTS.items()}
        assert bool(faults["isolation"]) == bool(faults["parity"]) == (name == "leaking")
    killed, planted = count_detected_faults(numerics)
    assert killed == planted == len(paths) * len(paths["sdpa"].mutants)

import pytest

from neobert.errors import ProjectError
from neobert.plan import CARDS, assumptions_for, find_card
from neobert.plan.size import ridge_width


@pytest.mark.parametrize(
    ("name", "card"),
    [
        ("A100", "A100"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA H200", "H200"),
        ("nvidia l40s", "L40S"),
        ("NVIDIA L4", "L4"),
        ("NVIDIA A10", "A10"),
        ("NVIDIA GeForce RTX 4090", "RTX 4090"),
    ],
)
def test_a_card_is_found_by_its_word(name, card):
    assert find_card(name).name == card


@pytest.mark.parametrize("name", ["", "Tesla V100", "A1000", "A100X", "4090"])
def test_an_unknown_card_is_an_error_that_lists_the_known(name):
    with pytest.raises(ProjectError) as error:
        find_card(name)
    assert "A100" in error.value.hint
    assert error.value.exit_code == 2


def test_published_peaks():
    peaks = {card.name: card.bf16_flops / 1e12 for card in CARDS}
    assert (peaks["A100"], peaks["H100"], peaks["H200"]) == (312, 989, 989)


def test_a_profile_may_say_how_much_memory_its_card_has():
    assert assumptions_for("A100", None, 0.3).device_memory_mib == 80 * 1024
    assert assumptions_for("A100", 40, 0.3).device_memory_mib == 40 * 1024


def test_the_cpu_is_an_assumption_per_core_without_a_memory_of_its_own():
    two, four = (assumptions_for(None, None, 0.3, cpu_cores=cores) for cores in (2, 4))
    assert four.peak_flops_per_device == 2 * two.peak_flops_per_device
    assert two.device_memory_mib is None
    assert not two.is_cuda
    assert "assumed" in two.source


def test_the_ridge_of_a_data_centre_card_is_above_the_width_of_a_toy():
    widths = {gpu: ridge_width(assumptions_for(gpu, None, 0.3)) for gpu in ("A100", "H100", "H200")}
    assert 128 < widths["A100"] < widths["H200"] < widths["H100"] < 768

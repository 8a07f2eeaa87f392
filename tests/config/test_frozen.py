import copy
import pickle
from dataclasses import FrozenInstanceError, asdict, fields, is_dataclass

import pytest

from neobert.config import RunConfig, from_dict, sections, to_dict

CONFIG = from_dict(
    {
        "variables": {"a": {"b": [1, {"c": 2}]}},
        "waivers": [{"code": "X", "reason": "agreed in the review", "expires": "2026-12-31"}],
    }
)


@pytest.mark.parametrize("section", ["", *sections(), "waivers"])
def test_no_value_can_be_changed_after_it_is_built(section):
    holder = CONFIG.waivers[0] if section == "waivers" else getattr(CONFIG, section) if section else CONFIG
    assert is_dataclass(holder)
    for field in fields(holder):
        with pytest.raises(FrozenInstanceError):
            setattr(holder, field.name, None)
        with pytest.raises(FrozenInstanceError):
            delattr(holder, field.name)
    # slots and frozen together refuse an unknown attribute in one of two ways, by Python version
    with pytest.raises((FrozenInstanceError, TypeError, AttributeError)):
        holder.brand_new = 1  # type: ignore[union-attr]


def test_free_values_refuse_every_change():
    table = CONFIG.variables
    for change in (
        lambda: table.update(x=1),
        lambda: table.pop("a"),
        lambda: table.popitem(),
        lambda: table.clear(),
        lambda: table.setdefault("x", 1),
        lambda: table.__setitem__("x", 1),
        lambda: table["a"].__delitem__("b"),
        lambda: table["a"]["b"][1].__ior__({"x": 1}),
    ):
        with pytest.raises(TypeError, match="frozen"):
            change()
    assert isinstance(table["a"]["b"], tuple)
    assert to_dict(CONFIG)["variables"] == {"a": {"b": [1, {"c": 2}]}}


def test_a_configuration_can_be_copied_and_sent_to_another_process():
    for twin in (copy.deepcopy(CONFIG), pickle.loads(pickle.dumps(CONFIG))):
        assert twin == CONFIG
        with pytest.raises(TypeError, match="frozen"):
            twin.variables["x"] = 1
    assert asdict(CONFIG)["variables"] == CONFIG.variables


def test_two_configurations_share_no_free_values():
    assert RunConfig().variables is not RunConfig().variables


def test_sections_are_equal_if_all_their_keys_are():
    left, right = from_dict({"seed": 1}), from_dict({"seed": 2})
    assert left != right
    assert left.optimizer == right.optimizer
    assert hash(left.optimizer) == hash(right.optimizer)
    other = from_dict({"optimizer": {"eps": 1e-9}}).optimizer
    assert other != left.optimizer
    assert other != left.scheduler
    assert "eps=1e-09" in repr(other)

"""A row in the table of tasks brings the keys of the task into the schema."""

# ruff: noqa: RUF009  (key() builds fields, which is what belongs in a class body)

from dataclasses import dataclass

import pytest

from neobert.config.hydrate import HydrationError, hydrate
from neobert.config.keys import all_keys
from neobert.config.schema import RunConfig, add_table_sections
from neobert.schema_fields import PositiveInt, key
from neobert.tasks.keys import TaskKeys
from neobert.tasks.table import TASKS


@dataclass(frozen=True, slots=True, kw_only=True)
class ToyConfig:
    """Keys of a toy."""

    shift: PositiveInt = key(1, "Shift of the labels.", affects="data")


def test_a_row_of_the_table_is_a_section_of_the_schema(monkeypatch):
    toy = TaskKeys(name="toy", package="nowhere", metrics=(), section=ToyConfig)
    monkeypatch.setitem(TASKS, "toy", toy)

    @dataclass(frozen=True, slots=True, kw_only=True)
    @add_table_sections
    class Config:
        seed: int = key(0, "Seed.", affects="data")

    assert toy.read_section(hydrate(Config, {"toy": {"shift": 2}})).shift == 2
    assert "toy.shift" in all_keys(Config)
    with pytest.raises(HydrationError) as caught:
        hydrate(Config, {"toy": {"shift": 0, "speed": 2}})
    assert [each.path for each in caught.value.problems] == [("toy", "shift"), ("toy", "speed")]


def test_every_task_has_its_section_under_its_name():
    sections = {name: task.section for name, task in TASKS.items() if task.section}
    read = {name: type(task.read_section(RunConfig())) for name, task in TASKS.items() if task.section}
    assert read == sections

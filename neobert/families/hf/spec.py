"""The light half of transformers' encoders."""

from __future__ import annotations

from collections.abc import Iterator

from neobert.config.optimizers import OPTIMIZERS
from neobert.config.schema import HfModelConfig, RunConfig
from neobert.families.family import Family, Unsupported
from neobert.families.hf.architectures import ARCHITECTURES
from neobert.families.hf.settings import read_settings
from neobert.families.shape import ModelShape


def section_of(config: RunConfig) -> HfModelConfig:
    """Return the section `model` of a run of this family."""
    assert isinstance(config.model, HfModelConfig), "asked of another model family"
    return config.model


def read_shape(section: HfModelConfig, vocab_size: int, longest_row: int) -> ModelShape:
    """Read the shape from the section and its config.json. Raises `ProjectError` MOD006."""
    settings = read_settings(section)
    architecture = settings.text("model_type", "")
    if architecture not in ARCHITECTURES:
        raise settings.wrong("model_type", " or ".join(ARCHITECTURES))
    return ARCHITECTURES[architecture](settings, vocab_size, max_positions(section, longest_row))


def max_positions(section: HfModelConfig, longest_row: int) -> int:
    """Return the positions of the model: the section's, the config.json's, or one per token of a row."""
    return read_settings(section).size("max_position_embeddings", longest_row)


def requested_rows(section: HfModelConfig) -> int | None:
    """Return the rows of the embedding: those of the checkpoint that a run starts from stay."""
    if section.vocab_size is not None or section.pretrained_checkpoint is None:
        return section.vocab_size
    return read_settings(section).size("vocab_size", 1)


def unsupported(config: RunConfig) -> Iterator[Unsupported]:
    """Name what a run asks for that these models cannot do here."""
    if config.task != "pretrain":
        problem = f"an encoder of transformers trains task pretrain, not {config.task}"
        yield Unsupported("task", problem, "set task to pretrain, or model.type to neobert")
    if config.datacollator.pack_sequences:
        key = "datacollator.pack_sequences"
        problem = "models of transformers attend across packed documents"
        yield Unsupported(key, problem, f"set {key} to false")
    if OPTIMIZERS[config.optimizer.name].matrices_by_muon:
        problem = f"{config.optimizer.name} splits the fused matrices of NeoBERT, not those of transformers"
        yield Unsupported("optimizer.name", problem, "set optimizer.name to adamw")
    if config.trainer.torch_compile:
        key = "trainer.torch_compile"
        yield Unsupported(key, "models of transformers are not compiled", f"set {key} to false")


HF = Family(
    name="hf",
    module="neobert.families.hf.build",
    read_shape=read_shape,
    requested_rows=requested_rows,
    requested_kernels=lambda _section: ("torch", "sdpa"),
    padded_attention=lambda section: section.attention,
    modules="the modules of transformers",
    with_kernels=lambda section, _blocks: section,
    packs=False,
    unsupported=unsupported,
)

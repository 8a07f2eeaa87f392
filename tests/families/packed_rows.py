"""Packed rows of a model of transformers, and what each of their documents is alone."""

import torch

from neobert.families.hf.attention import use_attention
from neobert.objectives import TokenObjective


def packed(lengths, lowest_id=5):
    """Return the inputs of a row with documents of these lengths, and with an empty one at its end."""
    total, draw = sum(lengths), torch.Generator().manual_seed(0)
    bounds = [0, *torch.tensor(lengths).cumsum(0).tolist(), total]
    return {
        "input_ids": torch.randint(lowest_id, 128, (total,), generator=draw),
        "position_ids": torch.cat([torch.arange(length) for length in lengths]),
        "attention_mask": None,
        "cu_seqlens": torch.tensor(bounds, dtype=torch.int32),
        "max_seqlen": max(lengths),
    }


def alone(ids):
    """Return a row of one document, without padding."""
    return {"input_ids": ids[None], "position_ids": torch.arange(len(ids))[None]}


def documents_of(row, values):
    """Return the values of each document of a row."""
    return values.split(row["cu_seqlens"].diff()[:-1].tolist())


@torch.no_grad()
def assert_states_of_documents_alone(backbone, row, close):
    """Compare with the model's own attention, padded rows and plain attention, to a relative difference."""
    together = documents_of(row, backbone.hidden(row))
    for ids, states in zip(documents_of(row, row["input_ids"]), together, strict=True):
        with use_attention(
            backbone.model, "eager"
        ):  # the model's own, with its own positions and token types
            own = backbone.model.base_model(ids[None]).last_hidden_state[0]
        padded = backbone.hidden(alone(ids) | {"attention_mask": torch.ones_like(ids[None])})
        for other in (own, padded, backbone.plain(ids)):
            assert (states - other).abs().max() <= close * states.abs().max()


def assert_gradients_of_documents_alone(backbone, row):
    """Compare the gradients of a packed row with the sum of those of its documents."""
    objective = TokenObjective(backbone, targets_only=True)
    labels = torch.where(torch.arange(len(row["input_ids"])) % 3 == 0, row["input_ids"], -100)
    weights = list(backbone.model.parameters())

    def gradients(labels, **inputs):
        loss = objective(int((labels >= 0).sum()), labels, **inputs)
        return torch.autograd.grad(loss, weights, allow_unused=True, materialize_grads=True)

    together, apart = gradients(labels, **row), [torch.zeros_like(each) for each in weights]
    assert objective.attention_used == dict.fromkeys(range(len(backbone.blocks)), "sdpa")
    for ids, wanted in zip(documents_of(row, row["input_ids"]), documents_of(row, labels), strict=True):
        of_one = gradients(wanted[None], **alone(ids), attention_mask=torch.ones_like(ids[None]))
        apart = [one + other for one, other in zip(apart, of_one, strict=True)]
    for one, other in zip(together, apart, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=3e-4)

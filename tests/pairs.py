"""Pairs of texts for tests. Imports no torch, which the unit set has not."""

import random

COLOURS = ("red", "green", "blue", "black", "white", "brown")
THINGS = ("stone", "river", "cloud", "horse", "apple", "house", "shoe", "bird")


def pairs(count: int, seed: int) -> list[dict[str, str]]:
    """Queries, answers with the same two words, and negatives with one of them."""
    draw = random.Random(seed)
    found = []
    for _ in range(count):
        colour, other = draw.sample(COLOURS, 2)
        thing, number = draw.choice(THINGS), draw.randrange(100)
        found.append(
            {
                "query": f"where is the {colour} {thing} {number}",
                "positive": f"{number} {colour} {thing}",
                "negative": f"{number} {other} {thing}",
            }
        )
    return found

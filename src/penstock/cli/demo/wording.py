"""Names and descriptions of what a shop sells, made by chance. Pure but for the chance."""

from collections.abc import Callable, Sequence
from typing import TypeVar

__all__ = ["ASKED", "CATEGORIES", "CITIES", "city", "customer", "description", "product", "write_review"]

Chance = Callable[[], float]
T = TypeVar("T")

ASKED = "copper kettle for the camp fire"
"""What the demonstration searches for: words of names and descriptions."""

CATEGORIES = ("kitchen", "garden", "travel", "office", "workshop")
CITIES = ("Aachen", "Bergen", "Cork", "Debrecen", "Évora", "Ghent", "Łódź", "Malmö", "Porto", "Zürich")
_QUALITIES = ("light", "sturdy", "folding", "quiet", "hand-made", "slim", "weatherproof", "classic")
_MATERIALS = ("copper", "oak", "steel", "linen", "glass", "bamboo", "leather", "ceramic", "wool")
_THINGS = (
    *("kettle", "lamp", "chair", "knife", "bottle", "tent", "notebook", "bench"),
    *("basket", "clock", "blanket", "pan", "shelf", "teapot", "backpack", "hammer"),
)
_PLACES = ("the camp fire", "small kitchens", "long journeys", "a quiet desk", "the balcony", "rough weather")
_PRAISE = (
    "It keeps its shape for years.",
    "Every part can be replaced.",
    "It dries in minutes.",
    "Two people carry it easily.",
    "The handle stays cool.",
    "It comes without plastic.",
)
_OPINIONS = (
    "Just what I needed",
    "Good, but heavy",
    "Broke after a week",
    "Lovely colour",
    "Would buy again",
)
_FIRST = ("Ada", "Blaise", "Clara", "Dénes", "Emmy", "Fritz", "Grace", "Hedy", "Ida", "Jón")
_LAST = (
    "Lovelace",
    "Pascal",
    "Immerwahr",
    "Gábor",
    "Noether",
    "Haber",
    "Hopper",
    "Lamarr",
    "Rhodes",
    "Jónsson",
)


def chosen(choices: Sequence[T], chance: Chance) -> T:
    """One of them."""
    return choices[int(chance() * len(choices))]


def product(chance: Chance) -> str:
    """A name such as `folding oak chair`."""
    return " ".join(chosen(words, chance) for words in (_QUALITIES, _MATERIALS, _THINGS))


def description(name: str, chance: Chance) -> str:
    """Three sentences about a product."""
    first = int(chance() * len(_PRAISE))
    praise = f"{_PRAISE[first - 1]} {_PRAISE[first]}"
    return f"A {name} for {chosen(_PLACES, chance)}, made in {chosen(CITIES, chance)}. {praise}"


def write_review(chance: Chance) -> str:
    """What a customer thinks."""
    return f"{chosen(_OPINIONS, chance)}. {chosen(_PRAISE, chance)}"


def customer(chance: Chance) -> str:
    """A name."""
    return f"{chosen(_FIRST, chance)} {chosen(_LAST, chance)}"


def city(chance: Chance) -> str:
    """Where somebody lives."""
    return chosen(CITIES, chance)

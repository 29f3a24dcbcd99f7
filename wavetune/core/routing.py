"""How a router spreads tokens over experts: laws of popularity, and histograms drawn from them.

What a graph is captured for is a number of tokens; which experts they go to is known only when it runs. So a choice for
a graph is made over histograms that are likely, and so are calibration and evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from wavetune.core.problem import check_dimension
from wavetune.errors import ProblemError

LAWS = ("zipf", "dirichlet")
"""``zipf``: the expert of rank r is as popular as ``r ** -strength``; 0 is uniform. ``dirichlet``: popularities are
drawn with concentration ``strength``; the smaller, the fewer experts matter."""


@dataclass(frozen=True, slots=True)
class Routing:
    """A law of how popular experts are.

    Parameters
    ----------
    law : {"zipf", "dirichlet"}
        See `LAWS`.
    strength : float
        Exponent, at least 0; or concentration, positive.

    Raises
    ------
    ProblemError
        If the law is unknown or the strength impossible.
    """

    law: str = "zipf"
    strength: float = 0.0

    def __post_init__(self) -> None:
        if self.law not in LAWS:
            raise ProblemError(f"unknown routing law {self.law!r}; known: {', '.join(LAWS)}")
        is_possible = math.isfinite(self.strength) and (
            self.strength > 0 or (self.law == "zipf" and self.strength == 0)
        )
        if not is_possible:
            raise ProblemError(f"strength of a {self.law} routing must be positive (zipf: or 0), got {self.strength!r}")

    def __str__(self) -> str:
        return f"{self.law}-{self.strength:g}"


UNIFORM = Routing()

LIKELY = (UNIFORM, Routing("zipf", 0.5), Routing("zipf", 1.0), Routing("dirichlet", 1.0), Routing("dirichlet", 0.3))
"""From the balance that routers are trained for to a few favoured experts. Which of them a model shows depends on its
layer and its input; nothing here was fitted to one."""


def sample_groups(
    routing: Routing, experts: int, tokens: int, seed: int | str, most: int | None = None
) -> tuple[int, ...]:
    """Draw a histogram: popularities of the law in random order, then tokens one by one, as if independent.

    Parameters
    ----------
    routing : Routing
        Law of popularity.
    experts : int
        Experts, positive.
    tokens : int
        Tokens of all experts together; one that goes to several experts counts for each.
    seed : int or str
        Equal arguments give equal histograms.
    most : int, optional
        Most tokens of one expert: a token goes to an expert once. ``tokens`` if not given.

    Returns
    -------
    tuple of int
        ``experts`` sizes that sum to ``tokens``.

    Raises
    ------
    ProblemError, ProblemTypeError
        If a count is impossible, or ``most`` times ``experts`` is less than ``tokens``.
    """
    experts, tokens = check_dimension("experts", experts), check_dimension("tokens", tokens)
    most = tokens if most is None else check_dimension("most", most)
    if not experts or most * experts < tokens:
        raise ProblemError(f"{experts} experts with at most {most} tokens each cannot take {tokens} tokens")
    rng = Random(f"{routing}/{experts}/{tokens}/{seed}")
    weights = _popularities(routing, experts, rng)
    sizes, left = [0] * experts, tokens
    while left:
        # What exceeds `most` is drawn again among the experts that still take some.
        for index, count in enumerate(_multinomial(rng, left, weights)):
            sizes[index] += count
        left = sum(max(size - most, 0) for size in sizes)
        sizes = [min(size, most) for size in sizes]
        weights = [0.0 if size >= most else weight for size, weight in zip(sizes, weights, strict=True)]
    return tuple(sizes)


def _popularities(routing: Routing, experts: int, rng: Random) -> list[float]:
    """Return positive weights, not normalised, in random order."""
    if routing.law == "zipf":
        weights = [rank**-routing.strength for rank in range(1, experts + 1)]
        rng.shuffle(weights)
        return weights
    # A floor keeps the sum positive where all draws underflow.
    return [max(rng.gammavariate(routing.strength, 1.0), 1e-30) for _ in range(experts)]


def _multinomial(rng: Random, count: int, weights: Sequence[float]) -> list[int]:
    """Return how often each index is drawn in ``count`` draws."""
    drawn = []
    rest = math.fsum(weights)
    last = max(index for index, weight in enumerate(weights) if weight > 0.0)
    for index, weight in enumerate(weights):
        share = min(weight / rest, 1.0) if index < last and rest > 0.0 else float(index == last)
        drawn.append(_binomial(rng, count, share))
        count -= drawn[-1]
        rest -= weight
    return drawn


_NORMAL_VARIANCE = 100.0
"""Above this variance a binomial is drawn as a rounded normal: its skew is below 0.1 then."""


def _binomial(rng: Random, count: int, share: float) -> int:
    """Return the successes of ``count`` trials; exact by waiting times where they are few."""
    if share > 0.5:
        return count - _binomial(rng, count, 1.0 - share)
    if count == 0 or share <= 0.0:
        return 0
    variance = count * share * (1.0 - share)
    if variance > _NORMAL_VARIANCE:
        return min(max(round(rng.gauss(count * share, math.sqrt(variance))), 0), count)
    successes, position, scale = -1, 0, math.log1p(-share)
    while position <= count:
        # 1 - random() is in (0, 1]: the logarithm is finite.
        position += int(math.log(1.0 - rng.random()) / scale) + 1
        successes += 1
    return successes

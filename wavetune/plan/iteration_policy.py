"""How often a candidate is launched, by how long a launch takes.

AMD's QuickTune states the policy by latency, and leaves 50 to 100 us open; here they belong to the middle class. The
latency is a predicted one: no pilot run.

Tuning takes the numbers as limits. Candidates take turns, so untimed launches are shared: one candidate warms clocks
and caches for the next. A candidate whose median is known well enough, or that is far behind, stops before its last
timed launch.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Iterations:
    """Launches of one candidate.

    Parameters
    ----------
    name : str
        The latency class.
    cold, timed : int
        Launches before, and those that are timed.
    """

    name: str
    cold: int
    timed: int

    @property
    def launches(self) -> int:
        """All of them."""
        return self.cold + self.timed


SHORT_US = 50.0
"""Below, a launch is short."""

LONG_US = 1000.0
"""Above, it is long."""

SHORT = Iterations("under 50 us", 200, 100)
MEDIUM = Iterations("50 to 1000 us", 50, 20)
LONG = Iterations("above 1000 us", 10, 2)
POLICY = (SHORT, MEDIUM, LONG)


def iterations_for(latency_us: float) -> Iterations:
    """Return the launches of a candidate of this latency, microseconds."""
    return SHORT if latency_us < SHORT_US else MEDIUM if latency_us <= LONG_US else LONG

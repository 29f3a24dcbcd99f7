"""Sums of floor divisions: what evenly spaced lengths and causal tiles add up to."""

from __future__ import annotations


def floor_sum(count: int, divisor: int, step: int, first: int) -> int:
    """Return the sum of ``(first + i * step) // divisor`` over i in [0, count), in logarithmic time.

    Whole steps are summed as a triangle; what is left counts the lattice points under a line, which are those of the
    line with axes swapped: Euclid's algorithm (Graham, Knuth and Patashnik, Concrete Mathematics, section 3.5).

    Parameters
    ----------
    count, step, first : int
        Not negative.
    divisor : int
        Positive.
    """
    total = 0
    while count > 0:
        total += (step // divisor) * (count * (count - 1) // 2) + (first // divisor) * count
        step, first = step % divisor, first % divisor
        reach = step * count + first
        count, first = reach // divisor, reach % divisor
        step, divisor = divisor, step
        if divisor == 0:
            break
    return total

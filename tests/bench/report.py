"""What a benchmark says."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import NamedTuple


class Row(NamedTuple):
    """One finding: a figure, what it is a ratio to, and both sides' values.

    Attributes:
        ratio: `value` over `base`, the median of the pairs.
    """

    name: str
    value: float
    base: float
    unit: str
    ratio: float

    def __str__(self) -> str:
        return (
            f"{self.name:<58} {self.ratio:>7.2f}   ({self.value:,.1f} / {self.base:,.1f} "
            f"{self.unit})"
        )


def compare(name: str, unit: str, values: Sequence[float], bases: Sequence[float]) -> Row:
    """A row from pairs that were measured in turn."""
    ratios = [value / base for value, base in zip(values, bases, strict=True)]
    return Row(
        name,
        statistics.median(values),
        statistics.median(bases),
        unit,
        statistics.median(ratios),
    )

"""What section 5.2 of the paper states in words; its other points are bars without numbers."""

from collections.abc import Mapping
from types import MappingProxyType

GainsPct = Mapping[tuple[str, str], float]
"""Welfare of pdFTSP over a rival's, by point and rival."""

PUBLISHED_GAINS_PCT: Mapping[int, GainsPct] = MappingProxyType(
    {
        4: {("50", "titan"): 30.78, ("50", "eft"): 137.35, ("50", "ntm"): 155.84},
        8: {("high", "titan"): 48.99, ("high", "eft"): 151.57, ("high", "ntm"): 184.94},
    }
)
"""By figure."""

PUBLISHED_RATIO_AT_MOST = 3.0
"""Of the offline optimum to pdFTSP, in all settings of Figure 12."""

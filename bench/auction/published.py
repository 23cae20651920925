"""What section 5.2 of the paper states in words; its other points are bars without numbers."""

from types import MappingProxyType

PUBLISHED_GAIN_PCT = MappingProxyType(
    {
        (4, "50", "titan"): 30.78,
        (4, "50", "eft"): 137.35,
        (4, "50", "ntm"): 155.84,
        (8, "high", "titan"): 48.99,
        (8, "high", "eft"): 151.57,
        (8, "high", "ntm"): 184.94,
    }
)
"""Welfare of pdFTSP over a rival's, by figure, point and rival."""

PUBLISHED_RATIO_AT_MOST = 3.0
"""Of the offline optimum to pdFTSP, in all settings of Figure 12."""

"""The figures that the thesis prints in chapter 5, to be set beside ours."""

from collections.abc import Mapping

MEASURED, THESIS = "measured", "thesis"
"""Sources of a table's rows."""

TABLE_5_1: Mapping[float, tuple[float, float]] = {
    0.0: (1.0, 1.0),
    0.2: (0.9, 0.97),
    0.5: (0.75, 0.92),
    0.8: (0.6, 0.76),
    1.0: (0.5, 0.67),
}
"""By the share of tokens with one expert: computation and running time of the layer over those of top-2."""

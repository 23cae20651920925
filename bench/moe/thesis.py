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

TABLE_5_3: Mapping[str, Mapping[str, tuple[float, float, float]]] = {
    "sentiment analysis": {
        "dense": (0.88, 2.18e9, 91.2),
        "top2": (1.0, 3.28e9, 91.8),
        "top1": (0.99, 2.18e9, 90.2),
        "adaptive 0.1": (0.77, 2.30e9, 91.9),
    },
    "text generation": {
        "dense": (0.84, 3.4e12, 16.3),
        "top2": (1.0, 4.9e12, 17.8),
        "top1": (1.14, 3.4e12, 16.5),
        "adaptive 0.1": (0.89, 3.73e12, 17.5),
    },
}
"""By task and scheme: training time over that of top-2, floating-point operations, and accuracy in percent or
perplexity. As printed, with text generation's perplexity best for the dense model and worst for top-2."""

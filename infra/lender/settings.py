"""Settings of a lender's process."""

from typing import Annotated, Literal

from pydantic import Field

from infra.lender.lending import LendingParameters
from schemas.services import SHORTEST_S, ServiceSettings

LEAST_INTERVAL_S = 0.5
"""Shortest interval: the lender reads the log and the clock a few times a second, and keeps two weeks of
intervals, which are two million of this length."""
Duration = Annotated[float, Field(ge=SHORTEST_S, le=31_536_000)]


class LenderSettings(ServiceSettings):
    """Settings of one lender: `MILLRACE_LENDER_*`. `LendingParameters` explains those with its names."""

    lender_forecaster: Literal["lstm", "seasonal"] = "lstm"
    """`lstm`: the seasonal-naive forecast until the LSTM beats it. That needs torch."""
    lender_interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=31_536_000)] = 300.0
    """Interval of forecasts; a load is expected at least once in it."""
    lender_steady_s: Annotated[float, Field(ge=0, le=604_800)] = 1_800.0
    """Time for which offered servers were not needed before, and are not forecast to be needed."""
    lender_margin_quantile: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Quantile, over earlier plans, of the load above the planned one, for which plans leave room."""
    lender_unknown_s: Duration = 900.0
    """Time without a report of the load after which all lent servers are reclaimed."""
    lender_delay_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """Longest time until a reclaim reaches the cell, and largest difference of clocks."""
    lender_retrain_s: Duration = 6 * 3_600.0
    """Interval of the LSTM's trainings."""
    lender_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Seed of the LSTM's training."""

    @property
    def parameters(self) -> LendingParameters:
        """Parameters of decisions."""
        return LendingParameters(
            interval_s=self.lender_interval_s,
            steady_s=self.lender_steady_s,
            margin_quantile=self.lender_margin_quantile,
            unknown_s=self.lender_unknown_s,
            delay_s=self.lender_delay_s,
        )

"""The settings of a lender's process."""

from typing import Annotated, Literal

from pydantic import Field

from infra.lender.lending import LendingParameters
from schemas.services import SHORTEST_S, ServiceSettings

LEAST_INTERVAL_S = 0.5
"""The lender looks at the log and the clock a few times a second, and keeps two weeks of intervals: two
million of this length."""
Duration = Annotated[float, Field(ge=SHORTEST_S, le=31_536_000)]


class LenderSettings(ServiceSettings):
    """How one lender runs: `MILLRACE_LENDER_*`. `LendingParameters` says more of what has its names."""

    lender_forecaster: Literal["lstm", "seasonal"] = "lstm"
    """`lstm`: the seasonal-naive forecast until the LSTM beats it. That needs torch."""
    lender_interval_s: Annotated[float, Field(ge=LEAST_INTERVAL_S, le=31_536_000)] = 300.0
    """The time of one forecast; a load is expected at least once in it."""
    lender_steady_s: Annotated[float, Field(ge=0, le=604_800)] = 1_800.0
    """What is offered was not and will not be needed for so long."""
    lender_margin_quantile: Annotated[float, Field(ge=0, le=1)] = 0.99
    """Plans leave room for this quantile of what loads have exceeded earlier plans by."""
    lender_unknown_s: Duration = 900.0
    """Without a report of the load for so long, all that is lent is wanted back."""
    lender_delay_s: Annotated[float, Field(ge=0, le=3_600)] = 5.0
    """A reclaim may take so long to reach the cell; clocks may differ by so much."""
    lender_retrain_s: Duration = 6 * 3_600.0
    """How often the LSTM is trained anew."""
    lender_seed: Annotated[int, Field(ge=0, lt=2**31)] = 0
    """Of the LSTM's training."""

    @property
    def parameters(self) -> LendingParameters:
        """What decisions depend on."""
        return LendingParameters(
            interval_s=self.lender_interval_s,
            steady_s=self.lender_steady_s,
            margin_quantile=self.lender_margin_quantile,
            unknown_s=self.lender_unknown_s,
            delay_s=self.lender_delay_s,
        )

"""Batch and learning rate of a job by its gradient noise, as Pollux's job agent tunes them (OSDI '21).

The thesis adapts that agent for Lyra+TunedJobs (section 3.7.1).
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

_MEMORY = 0.9
"""Weight of the mean so far against a new step."""


@dataclass(frozen=True)
class SmallGradients:
    """Squared norms of gradients of parts of a batch.

    Attributes:
        weighted: sum over the parts of the squared norm of the part's mean gradient, times its sequences.
        sequences: sequences of all parts.
        parts: number of parts.
    """

    weighted: float
    sequences: float
    parts: float


def noise_and_signal(small: SmallGradients, norm: float, batch: int) -> tuple[float, float] | None:
    """Return estimates of the trace of the covariance of a sequence's gradient, and of the squared norm of
    the true gradient; None if the parts are the whole batch.

    Both are without bias: a mean over b sequences has the expected squared norm |G|^2 + S / b (McCandlish et
    al. 2018, appendix A.1, here for parts of unlike size). Single estimates may be negative.

    Args:
        norm: norm of the mean gradient of the batch.
        batch: sequences in it.
    """
    spread = small.parts - small.sequences / batch
    if spread <= 1e-9:
        return None
    noise = (small.weighted - norm**2 * small.sequences) / spread
    return noise, norm**2 - noise / batch


@dataclass(frozen=True)
class NoiseScale:
    """Means of both estimates over the latest steps, and the number of steps."""

    noise: float = 0.0
    signal: float = 0.0
    steps: int = 0

    def after(self, noise: float, signal: float) -> "NoiseScale":
        """Return the means with a further step."""
        if not (math.isfinite(noise) and math.isfinite(signal)):
            return self
        # With few steps all count alike.
        kept = min(_MEMORY, self.steps / (self.steps + 1))
        return NoiseScale(
            kept * self.noise + (1 - kept) * noise, kept * self.signal + (1 - kept) * signal, self.steps + 1
        )

    @property
    def sequences(self) -> float | None:
        """The gradient noise scale: the batch at which noise and signal are equal; None if it is unknown."""
        if self.noise <= 0 or self.signal <= 0:
            return None
        scale = self.noise / self.signal
        return scale if 0 < scale < math.inf else None


def candidates(batch: int, least: int, most: int) -> Iterator[int]:
    """Yield a batch, and those of its halves and doubles that lie between two bounds."""
    yield batch
    larger = batch * 2
    while larger <= most:
        yield larger
        larger *= 2
    smaller = batch // 2
    while smaller >= least:
        yield smaller
        smaller //= 2


def best_batch(
    own: int, bounds: tuple[int, int], noise_scale: float | None, step_s: Callable[[int], float]
) -> int:
    """Return the batch of the highest goodput: throughput times efficiency (Pollux).

    Args:
        own: the job's own batch, and the answer where the noise scale is unknown.
        bounds: least and most sequences.
        step_s: returns the time of a step with a batch, in any unit.
    """
    if noise_scale is None:
        return own

    def goodput(batch: int) -> float:
        return batch / step_s(batch) * (noise_scale + own) / (noise_scale + batch)

    return max(candidates(own, *bounds), key=goodput)


def learning_rate(
    own_rate: float, own: int, batch: int, noise_scale: float | None, bounds: tuple[float, float]
) -> float:
    """Return AdamW's learning rate at a batch size: `own_rate` times the square root of AdaScale's gain.

    AdaScale's gain (thesis, reference 67) is the number of steps at batch size `own` that one step at `batch`
    replaces. Its square root applies to optimisers that normalise gradients.

    Args:
        bounds: the lowest and the highest learning rate.
    """
    if noise_scale is None or batch == own:
        return own_rate
    gain = (noise_scale / own + 1) / (noise_scale / batch + 1)
    least, most = bounds
    return min(max(own_rate * math.sqrt(gain), least), most)

"""The LSTM that forecasts inference loads (thesis, section 3.6). Importing it loads torch."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from infra.lender.forecast import clipped, present_load
from infra.lender.history import LoadHistory

WINDOW = 10
"""Intervals that a forecast depends on (section 3.6)."""
LAYERS = 2
"""Hidden layers (section 3.6)."""
_HIDDEN = 32
_BATCH = 128
_LEARNING_RATE = 3e-3
_LEAST_WINDOWS = 5 * WINDOW
"""Fewest windows to train on."""


class LoadNetwork(nn.Module):
    """Network from windows of loads, [batch, WINDOW], to the change from the last load to the next, [batch];
    both in standard deviations."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=1, hidden_size=_HIDDEN, num_layers=LAYERS, batch_first=True)
        self.head = nn.Linear(_HIDDEN, 1)

    def forward(self, windows: Tensor) -> Tensor:
        states, _ = self.lstm(windows.unsqueeze(-1))
        change: Tensor = self.head(states[:, -1]).squeeze(-1)
        return change


@dataclass(frozen=True)
class LstmForecast:
    """A trained network with the scale of the loads that it was trained on."""

    network: LoadNetwork
    mean: float
    deviation: float

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`; each step after the first uses the forecasts before it as reports."""
        window = [(load - self.mean) / self.deviation for load in recent_loads(history)]
        loads = []
        with torch.inference_mode():
            for _ in range(steps):
                change = self.network(torch.tensor([window], dtype=torch.float32)).item()
                load = clipped((window[-1] + change) * self.deviation + self.mean)
                loads.append(load)
                window = [*window[1:], (load - self.mean) / self.deviation]
        return loads


def train(
    history: LoadHistory, until: int | None = None, seed: int = 0, steps: int = 400
) -> LstmForecast | None:
    """Train a new network, with Adam on the mean squared error, on all windows of known loads.

    The same history, seed and machine give the same network; the caller's random state is left as it was.

    Args:
        until: Last interval to train on; by default the one before the last, which is not over.
        steps: Steps of gradient descent, some milliseconds each, regardless of the length of the history.

    Returns:
        None if the history is too short.
    """
    last = history.last - 1 if until is None else until
    runs = torch.tensor(_known_runs(history, last), dtype=torch.float32)
    if len(runs) < _LEAST_WINDOWS:
        return None
    mean = float(runs.mean())
    deviation = max(float(runs.std()), 1e-3)
    scaled = (runs - mean) / deviation
    windows, changes = scaled[:, :WINDOW], scaled[:, WINDOW] - scaled[:, WINDOW - 1]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LoadNetwork()
        _descend(network, windows, changes, steps)
    return LstmForecast(network.eval(), mean, deviation)


def _descend(network: LoadNetwork, windows: Tensor, changes: Tensor, steps: int) -> None:
    """Minimise the mean squared error over random batches, at a learning rate that falls to zero."""
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    loss_of = nn.MSELoss()
    for _ in range(steps):
        chosen = torch.randint(len(windows), (_BATCH,))
        loss = loss_of(network(windows[chosen]), changes[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def recent_loads(history: LoadHistory) -> list[float]:
    """Return the last WINDOW loads; an unknown one is the nearest known one before it, or else after it."""
    known = [history.mean(history.last - back) for back in reversed(range(WINDOW))]
    filler = next((load for load in known if load is not None), present_load(history))
    loads = []
    for load in known:
        filler = filler if load is None else load
        loads.append(filler)
    return loads


def _known_runs(history: LoadHistory, last: int) -> list[list[float]]:
    """Return all runs of WINDOW + 1 known loads in a row, up to an interval."""
    runs = []
    run: list[float] = []
    for index in range(history.first, last + 1):
        load = history.mean(index)
        if load is None:
            run = []
            continue
        run = [*run[-WINDOW:], load]
        if len(run) == WINDOW + 1:
            runs.append(run)
    return runs

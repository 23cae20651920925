"""The LSTM that forecasts inference loads (thesis, section 3.6). Importing it loads torch."""

import math
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from infra.lender.forecast import clipped, present_load, season_of
from infra.lender.history import LoadHistory

WINDOW = 10
"""Changes of the load, from one interval to the next, that a forecast depends on (section 3.6)."""
LAYERS = 2
"""Hidden layers (section 3.6)."""
CONTEXT = 8
"""Numbers besides the window, see `_context`."""
_HIDDEN = 32
_BATCH = 128
_LEARNING_RATE = 3e-3
_LEAST_WINDOWS = 5 * WINDOW
"""Fewest windows to train on."""
_KEPT_ASIDE = 0.2
"""Part of the windows, the latest, that the network is not trained on and that determine its weight."""
_DAY_S = 86_400.0


class LoadNetwork(nn.Module):
    """Network from windows of changes, [batch, WINDOW], and their contexts, [batch, CONTEXT], to the next
    change, [batch]. Changes are in standard deviations."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(input_size=1, hidden_size=_HIDDEN, num_layers=LAYERS, batch_first=True)
        self.head = nn.Linear(_HIDDEN + CONTEXT, 1)

    def forward(self, windows: Tensor, contexts: Tensor) -> Tensor:
        states, _ = self.lstm(windows.unsqueeze(-1))
        change: Tensor = self.head(torch.cat((states[:, -1], contexts), dim=1)).squeeze(-1)
        return change


@dataclass(frozen=True)
class LstmForecast:
    """A trained network, with the scale of the changes that it was trained on, and its weight."""

    network: LoadNetwork
    deviation: float
    """Standard deviation of the changes."""
    weight: float
    """Factor on the forecast changes, from 0 to 1: 0 is the last value."""

    def forecast(self, history: LoadHistory, steps: int) -> list[float]:
        """Forecast as in `Forecaster`; each step after the first uses the forecasts before it as reports."""
        recent = recent_loads(history)
        loads: list[float] = []
        with torch.inference_mode():
            for step in range(steps):
                window = [(after - before) / self.deviation for before, after in pairwise(recent)]
                context = _context(history, history.last + step, recent[-1], self.deviation)
                change = self.network(torch.tensor([window]), torch.tensor([context])).item()
                loads.append(clipped(recent[-1] + self.weight * change * self.deviation))
                recent = [*recent[1:], loads[-1]]
        return loads


def train(
    history: LoadHistory, until: int | None = None, seed: int = 0, steps: int = 400
) -> LstmForecast | None:
    """Train a new network, with Adam on the mean squared error, on all windows of known loads but the latest
    fifth. There, the true changes are regressed on the forecast ones, and the slope is the weight: so a
    network that has learnt nothing of the future forecasts the last value.

    The same history, seed and machine give the same network; the caller's random state is left as it was.

    Args:
        until: Last interval to train on; by default the one before the last, which is not over.
        steps: Steps of gradient descent, some milliseconds each, regardless of the length of the history.

    Returns:
        None if the history is too short.
    """
    last = history.last - 1 if until is None else until
    runs = _known_runs(history, last)
    if len(runs) < _LEAST_WINDOWS:
        return None
    changes = torch.tensor([[after - before for before, after in pairwise(loads)] for _, loads in runs])
    deviation = max(float(changes.std()), 1e-4)
    changes = changes / deviation
    contexts = torch.tensor([_context(history, index - 1, loads[-2], deviation) for index, loads in runs])
    windows, targets = changes[:, :WINDOW], changes[:, WINDOW]
    known = round((1 - _KEPT_ASIDE) * len(runs))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = LoadNetwork()
        _descend(network, windows[:known], contexts[:known], targets[:known], steps)
    network.eval()
    with torch.inference_mode():
        forecast = network(windows[known:], contexts[known:])
    explained = float((forecast * targets[known:]).sum()) / max(float((forecast * forecast).sum()), 1e-9)
    return LstmForecast(network, deviation, min(max(explained, 0.0), 1.0))


def _descend(network: LoadNetwork, windows: Tensor, contexts: Tensor, targets: Tensor, steps: int) -> None:
    """Minimise the mean squared error over random batches, at a learning rate that falls to zero."""
    optimizer = torch.optim.Adam(network.parameters(), lr=_LEARNING_RATE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=steps)
    loss_of = nn.MSELoss()
    for _ in range(steps):
        chosen = torch.randint(len(windows), (_BATCH,))
        loss = loss_of(network(windows[chosen], contexts[chosen]), targets[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()


def recent_loads(history: LoadHistory) -> list[float]:
    """Return the last WINDOW + 1 loads; an unknown one is the nearest known one before it, or else after
    it."""
    known = [history.mean(history.last - back) for back in reversed(range(WINDOW + 1))]
    filler = next((load for load in known if load is not None), present_load(history))
    loads = []
    for load in known:
        filler = filler if load is None else load
        loads.append(filler)
    return loads


def _context(history: LoadHistory, index: int, load: float, deviation: float) -> list[float]:
    """Return the inputs of a forecast besides the window: hour and weekday of the next interval, as sines and
    cosines; the change of the season up to that interval; and the load's distance from the season.

    Args:
        index: Interval of the load; the forecast is of the next one.
        load: Its load, known or forecast.
        deviation: Unit of the last two numbers.
    """
    days = (index + 1) * history.interval_s / _DAY_S
    angles = [2 * math.pi * turns for turns in (days, 2 * days, days / 7)]
    past = season_of(history, index, days=2)
    ahead = season_of(history, index + 1, days=2)
    season = (0.0, 0.0) if past is None or ahead is None else (ahead - past, past - load)
    return [
        *(function(angle) for angle in angles for function in (math.sin, math.cos)),
        *(number / deviation for number in season),
    ]


def _known_runs(history: LoadHistory, last: int) -> list[tuple[int, list[float]]]:
    """Return all runs of WINDOW + 2 known loads in a row, up to an interval, each with that of its end."""
    runs = []
    run: list[float] = []
    for index in range(history.first, last + 1):
        load = history.mean(index)
        if load is None:
            run = []
            continue
        run = [*run[-WINDOW - 1 :], load]
        if len(run) == WINDOW + 2:
            runs.append((index, run))
    return runs

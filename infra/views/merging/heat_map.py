"""Picture of gains between tasks: donors by row, receivers by column, a map for each mode of merges."""

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra.text import signed_percent
from infra.views.merging.transfers import Transfer, tasks_in
from schemas.text import plain

MOST_TASKS = 40
"""Most tasks on a map; of more, those with the most merges are shown."""
_LONGEST_LABEL = 36
_LEAST_SCALE = 0.01
"""Least end of the colour scale: smaller gains have no strong colours, even without larger ones."""
_COLOURS = "RdBu"
"""Colour map from loss to gain."""
_UNKNOWN = "0.8"
"""Grey, for unknown gains."""
_DARK = 0.6
"""Part of the largest gain from which on colours are too dark for black figures."""
_CELL_INCHES, _LEAST_SIDE_INCHES, _GAP_INCHES, _BAR_INCHES = 0.42, 4.0, 0.4, 0.2
_TITLE_INCHES, _NOTE_INCHES = 0.75, 0.45
_TITLES = {"temporal": "A -> B: B starts from what A leaves", "spatial": "A || B: both in one run"}
_NOTE = "outside: forecast; square inside, of pairs that were merged: what came, and how many merges (undone)"


def draw(transfers: Sequence[Transfer], path: Path, title: str) -> None:
    """Write a PNG. The colour of a cell is the forecast gain. For merged pairs, the square inside has the
    colour of the measured gain, and the number of merges, with that of undone ones in brackets.

    Args:
        transfers: Transfers to show, one at least.
        path: File to write.
        title: Title of the picture.

    Raises:
        ModuleNotFoundError: matplotlib is not installed.
        OSError: the file cannot be written.
    """
    # A late import: it takes a second, and is only installed with the extra `bench`.
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize
    from matplotlib.figure import Figure

    tasks = sorted(tasks_in(transfers)[:MOST_TASKS])
    modes = list(dict.fromkeys(transfer.mode for transfer in transfers))
    known = [gain for each in transfers for gain in (each.forecast, each.gain) if gain is not None]
    most = max([_LEAST_SCALE, *map(abs, known)])
    colours = ScalarMappable(Normalize(-most, most), _COLOURS)
    side = max(_CELL_INCHES * len(tasks), _LEAST_SIDE_INCHES)
    width = len(modes) * (side + _GAP_INCHES) + _BAR_INCHES
    figure = Figure(figsize=(width, side))
    for number, mode in enumerate(modes):
        axes = figure.add_axes((number * (side + _GAP_INCHES) / width, 0.0, side / width, 1.0))
        _map(axes, [one for one in transfers if one.mode == mode], tasks, colours)
        axes.set_title(_TITLES[mode])
        if number:
            axes.set(yticklabels=[], ylabel="")
    figure.suptitle(plain(title), y=1.0 + _TITLE_INCHES / side, parse_math=False)
    bar_axes = figure.add_axes((1.0 - _BAR_INCHES / width, 0.0, _BAR_INCHES / width, 1.0))
    bar = figure.colorbar(colours, cax=bar_axes, format=lambda gain, _: signed_percent(gain))
    bar.set_label("gain of the receiver's accuracy; grey: not known")
    figure.text(0.0, 1.0 + _NOTE_INCHES / side, _NOTE, fontsize="small")
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # of scripts that the font lacks
        # Labels are outside of the figure; the picture is made as large as they need.
        figure.savefig(path, format="png", dpi=100, bbox_inches="tight")


def _map(axes: Any, transfers: Sequence[Transfer], tasks: Sequence[str], colours: Any) -> None:
    from matplotlib.patches import Rectangle

    place = {name: number for number, name in enumerate(tasks)}
    axes.set_facecolor(_UNKNOWN)
    for transfer in transfers:
        if transfer.donor not in place or transfer.receiver not in place:
            continue
        x, y = place[transfer.receiver], place[transfer.donor]
        if transfer.forecast is not None:
            axes.add_patch(Rectangle((x - 0.5, y - 0.5), 1, 1, color=colours.to_rgba(transfer.forecast)))
        if transfer.merges:
            inside = _UNKNOWN if transfer.gain is None else colours.to_rgba(transfer.gain)
            axes.add_patch(Rectangle((x - 0.3, y - 0.3), 0.6, 0.6, facecolor=inside, edgecolor="black"))
            is_dark = transfer.gain is not None and abs(transfer.gain) > _DARK * colours.norm.vmax
            undone = f"\n({transfer.undone})" if transfer.undone else ""
            axes.text(
                *(x, y, f"{transfer.merges}{undone}"),
                ha="center",
                va="center",
                fontsize="x-small",
                color="white" if is_dark else "black",
            )
    labels = [_label(name) for name in tasks]
    axes.set_xticks(range(len(tasks)), labels, rotation=90, fontsize="small", parse_math=False)
    axes.set_yticks(range(len(tasks)), labels, fontsize="small", parse_math=False)
    axes.set(
        xlim=(-0.5, len(tasks) - 0.5),
        ylim=(len(tasks) - 0.5, -0.5),
        xlabel="receiver",
        ylabel="donor",
        aspect="equal",
    )


def _label(name: str) -> str:
    shown = plain(name)
    return shown if len(shown) <= _LONGEST_LABEL else f"…{shown[1 - _LONGEST_LABEL :]}"

"""The views of `watch` and `explain` show loans."""

from infra.figures.loans import CellLoans
from schemas.base import Event
from schemas.clock import ClockTicked
from schemas.codec import Envelope
from schemas.inference import InferenceLoadReported


def test_load_from_future_hides_no_later_one():
    loans = CellLoans()
    events: list[Event] = [
        ClockTicked(cell="c", time_s=60.0),
        InferenceLoadReported(cell="c", zone="z", time_s=1_000_000.0, load=0.1),
        ClockTicked(cell="c", time_s=120.0),
        InferenceLoadReported(cell="c", zone="z", time_s=119.0, load=0.9),
        InferenceLoadReported(cell="c", zone="z", time_s=61.0, load=0.5),
    ]
    for number, event in enumerate(events):
        loans.fold_event(Envelope(f"e{number}", "/test", "1970-01-01T00:00:00Z", event))
    assert loans.loads == {"z": 0.9}

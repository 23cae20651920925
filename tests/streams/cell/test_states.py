"""Dataclasses that are saved and restored are equal to the originals."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.commands import RunDisowned
from solvers.merging.errors import GainErrors, IterationErrors
from streams.cell.disowned import DisownedRuns
from streams.cell.jobs import Job
from streams.cell.node_record import NodeRecord
from streams.cell.offers import Load
from streams.cell.packing import pack, unpack
from streams.cell.states import NO_STATE, from_state, state_of
from streams.policies.elastic.turns import Turn
from streams.policies.merging.kind_of_jobs import KindOfJobs
from streams.policies.merging.tuning_task import TuningTask
from streams.policies.orders import OrderClock
from tests.support.cells import bid
from tests.support.examples import examples

JOB = Job.of(bid("j"))
RECORD = RunDisowned(zone="z", node="n", run_id="0/j", job_id="j")


class Place(NamedTuple):
    """A tuple with names."""

    node: str
    slot: int | None


@dataclass
class Part:
    """A dataclass in another one."""

    names: dict[str, None]
    place: Place | None = None


@dataclass
class Whole:
    """A record with a field of each type that the codec has."""

    job: Job
    part: Part
    record: RunDisowned | None
    places: list[Place]
    parts: dict[str, Part]
    by_pair: dict[tuple[str, int], Place]
    by_slot: dict[int, int | None]
    by_mode: dict[Literal["a", "b"], float]
    digests: dict[bytes, dict[bytes, None]]
    several: tuple[Part, ...] = ()
    pair: tuple[str, Place] | None = None
    pairs: set[tuple[int, int]] = field(default_factory=set)
    cached: int = field(default=0, metadata=NO_STATE)


WHOLES = st.builds(
    Whole,
    job=st.just(JOB),
    record=st.sampled_from((None, RECORD)),
    cached=st.just(0),
)


def restored(value: Any) -> Any:
    return from_state(type(value), unpack(pack(state_of(value))), {"j": JOB})


@settings(max_examples=examples(500), deadline=None)
@given(WHOLES)
def test_every_type_of_field_is_restored(whole):
    assert repr(restored(whole)) == repr(whole), "equal, where NaN is not"


@pytest.mark.parametrize("of", [GainErrors, IterationErrors, KindOfJobs, Load, NodeRecord, TuningTask, Turn])
@settings(max_examples=examples(100), deadline=None)
@given(data=st.data())
def test_records_of_cells_and_zones_are_restored(of, data):
    value = data.draw(st.builds(of))
    assert repr(restored(value)) == repr(value)


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("cd"), st.floats(0, 300)), max_size=20))
def test_disowned_runs_go_on_from_a_state(notes):
    runs, again = DisownedRuns(), DisownedRuns()
    for node, run_id, time_s in notes:
        again.restore(unpack(pack(runs.state())))
        assert again.note(node, run_id, time_s) == runs.note(node, run_id, time_s)
        assert again.state() == runs.state()


@settings(max_examples=examples(100), deadline=None)
@given(st.lists(st.floats(0, 1_000), max_size=20))
def test_an_order_clock_continues_from_a_state(times_s):
    clock, again = OrderClock("c", 60.0), OrderClock("c", 60.0)
    for time_s in times_s:
        again.restore(unpack(pack(clock.state())))
        assert again.advance(time_s) == clock.advance(time_s)
        assert again.state() == clock.state()

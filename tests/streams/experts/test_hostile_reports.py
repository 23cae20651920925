"""Reports with numbers that the schemas let pass and that no sound node would send: none stops the cell, and
every job ends."""

import random
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from schemas.experts.reports import ExpertsProfiled, ExpertsRouted, LayerRouting
from schemas.fleet import RunFailed, RunFinished, RunProgressed, RunReport, RunStarted
from tests.streams.experts.test_histories import PATIENCES_S, STEPS, History, check_end
from tests.support.examples import examples
from tests.support.moe import CELL

MOST_TOKENS = 2**40
TOKENS = (0, 0, 1, 2, 1_000, MOST_TOKENS - 1, MOST_TOKENS)


class HostileHistory(History):
    """Half of what happens is a report with numbers that no sound node would send."""

    def step(self) -> None:
        jobs = self.bench.jobs
        if jobs and self.rng.random() < 0.5:
            self.send(self._report(self.rng.choice(jobs)))
        else:
            super().step()

    def _report(self, job: dict[str, Any]) -> RunReport:
        rng = self.rng
        place = {
            "cell": CELL,
            "node": rng.choice([*job["members"], *job["leaving"], job["leader"] or "n0", "n0"]),
            "run_id": rng.choice([*3 * [job["run_id"]], f"{job['generation'] + 1}/{job['job_id']}", "x"]),
            "job_id": job["job_id"],
            "samples_done": rng.choice([0, 1, 1_000, 2 * 10**12]),
        }
        match rng.choice([*3 * ["profiled"], *6 * ["routed"], "started", "progressed", "finished", "failed"]):
            case "profiled":
                return self._profiled(place)
            case "routed":
                return self._routed(place)
            case "started":
                return RunStarted(**place)
            case "progressed":
                return RunProgressed(**place, node_s=rng.choice([0.0, 1e9]), complete=rng.random() < 0.3)
            case "finished":
                return RunFinished(**place)
        return RunFailed(**place, error=rng.choice(["", "x"]), permanent=rng.random() < 0.2)

    def _layers(self) -> tuple[LayerRouting, ...]:
        rng = self.rng
        layers, experts = rng.choice([(1, 8), (2, 8), (2, 8), (2, 1), (146, 9), (29, 64), (7, 256), (1, 256)])
        return tuple(
            LayerRouting(tokens=tuple(rng.choice(TOKENS) for _ in range(experts))) for _ in range(layers)
        )

    def _profiled(self, place: dict[str, Any]) -> ExpertsProfiled:
        accuracy = self.rng.choice([None, 0.0, 5e-324, 1.0])
        return ExpertsProfiled(**place, layers=self._layers(), path_length=8, paths=10**9, accuracy=accuracy)

    def _routed(self, place: dict[str, Any]) -> ExpertsRouted:
        return ExpertsRouted(
            **place,
            layers=self._layers(),
            batches=10**9,
            interval_s=self.rng.choice([0.0, 5e-324, 1e9]),
            revised=10**12,
            revision=self.rng.choice([0, 0, 1, 10**9]),
        )


@settings(deadline=None, max_examples=examples(25))
@given(st.integers(0, 2**32))
def test_whatever_nodes_report_every_job_ends(seed: int) -> None:
    history = HostileHistory(random.Random(seed), PATIENCES_S[seed % len(PATIENCES_S)])
    for _ in range(STEPS):
        history.step()
    # Only nodes that were released report an end: nodes that restart report theirs unasked.
    for node in history.own:
        history.nodes.lose(node)
        history.come_back(node)
    history.come_to_rest()
    check_end(history)

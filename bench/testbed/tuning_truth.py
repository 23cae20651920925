"""Simulated fine-tuning jobs that learn as they did on a deployment, or as others of the same data did."""

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from bench.testbed.tuning_times import TuningConstants
from infra.simulation.merging.truth import AccuracyAfter, ProfileTruth
from infra.simulation.simulator import Step
from schemas.jobs import JobSubmitted
from schemas.merging.commands import TaskAssigned
from schemas.merging.estimates import MergeMode
from schemas.merging.reports import MeasuredStep, TaskEvaluated, TaskProfiled
from schemas.merging.workload import TuningWorkload

Curve = Mapping[float, float]
"""Accuracy by epochs of one job, ascending."""
_Key = tuple[str, str | None, str]
"""Dataset, dataset of the donor if there is one, and phase of an evaluation."""


@dataclass(frozen=True)
class ObservedTruth:
    """Jobs that learn as they did themselves, alone or after the same donor, see `Truth`. How a job learns is
    a part of its work: a simulator of the times does not have to forecast it.

    A job that was not observed so, or not to its end, learns as one of the others on the same data did; a
    mean of them would leave out those that have met their targets. A receiver that has not seen its donor's
    data before learns as after other donors; without any, as alone.
    """

    constants: TuningConstants
    curves: Mapping[_Key, Mapping[int, Curve]]
    """Curves of each job, by its seed, which no two share."""
    profiles: Mapping[str, TaskProfiled]
    """A profile run of each dataset."""

    @classmethod
    def of(cls, steps: Sequence[Step], constants: TuningConstants) -> "ObservedTruth":
        """Read the curves and the profile runs of all jobs from a log."""
        data: dict[str, str] = {}
        seeds: dict[str, int] = {}
        donors: dict[str, str] = {}
        seen: defaultdict[_Key, defaultdict[int, dict[float, float]]] = defaultdict(lambda: defaultdict(dict))
        profiles: dict[str, TaskProfiled] = {}
        for step in steps:
            for decision in step.decisions:
                match decision.outcome:
                    case TaskAssigned(mode="temporal", orders=(donor, receiver)):
                        donors[receiver.run_id] = donor.job_id
            match step.entry.envelope.event:
                case JobSubmitted(workload=TuningWorkload() as workload) as job:
                    data[job.job_id] = workload.dataset.path
                    seeds[job.job_id] = workload.hyperparameters.seed
                case TaskProfiled() as run:
                    profiles.setdefault(data[run.job_id], run)
                case TaskEvaluated() as run:
                    donor_id = donors.get(run.run_id)
                    key = data[run.job_id], None if donor_id is None else data[donor_id], run.phase
                    seen[key][seeds[run.job_id]][run.epochs] = run.accuracy
        curves = {
            key: {seed: dict(sorted(curve.items())) for seed, curve in jobs.items()}
            for key, jobs in seen.items()
        }
        return cls(constants, curves, profiles)

    def profile(self, workload: TuningWorkload, iterations: int) -> ProfileTruth:
        """See `Truth`."""
        known = self.profiles.get(workload.dataset.path) or next(iter(self.profiles.values()))
        return ProfileTruth(
            losses=known.losses[:iterations],
            embedding=known.embedding,
            accuracy=known.accuracy,
            loader_s=known.loader_s,
            memory_gib=known.memory_gib,
            other_s=self.constants.profile_s,
            more_steps=known.steps[1:],
        )

    def alone(self, workload: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        return _after(_chosen(self.curves.get((workload.dataset.path, None, "own"), {}), workload))

    def merged(self, mode: MergeMode, workload: TuningWorkload, partner: TuningWorkload) -> AccuracyAfter:
        """See `Truth`."""
        if mode != "temporal":
            return self.alone(workload)
        own = workload.dataset.path
        seen = {
            donor: curves
            for (receiver, donor, phase), curves in self.curves.items()
            if receiver == own and donor is not None and phase == "own"
        }
        curves = seen.get(partner.dataset.path) or next(iter(seen.values()), None)
        return self.alone(workload) if curves is None else _after(_chosen(curves, workload))

    def as_receiver(self, workload: TuningWorkload, donor: TuningWorkload) -> AccuracyAfter | None:
        """See `Truth`."""
        curves = self.curves.get((workload.dataset.path, donor.dataset.path, "donor"))
        return None if not curves else _after(_chosen(curves, workload))

    def step(self, workload: TuningWorkload, placement: tuple[int, ...]) -> MeasuredStep:
        """See `Truth`."""
        gpus = min(sum(placement), workload.hyperparameters.batch_size)
        micro_batch_size = -(-workload.hyperparameters.batch_size // gpus)
        step_s = self.constants.step_s(micro_batch_size)
        return MeasuredStep(
            gpus=sum(placement),
            nodes=len(placement),
            micro_batch_size=micro_batch_size,
            accumulation_steps=1,
            step_s=step_s,
            exchange_s=min(self.constants.exchange_s, step_s) if gpus > 1 else 0.0,
        )

    def start_s(self, workload: TuningWorkload, is_warm: bool, is_prewarmed: bool) -> float:
        """See `Truth`."""
        del workload, is_prewarmed  # a part of the measured time
        return self.constants.warm_s if is_warm else self.constants.cold_s


def _chosen(curves: Mapping[int, Curve], workload: TuningWorkload) -> Curve:
    """Choose the job's own curve, or another by its seed, of those that meet its target or are long enough to
    show that it is not met, if there are any."""
    if not curves:
        return {}
    accuracy = workload.target.accuracy
    last = workload.target.most_iterations / workload.iterations_per_epoch
    complete = {
        seed: curve
        for seed, curve in curves.items()
        if max(curve) >= last or (accuracy is not None and max(curve.values()) >= accuracy)
    }
    among, seed = complete or curves, workload.hyperparameters.seed
    return among[seed] if seed in among else list(among.values())[seed % len(among)]


def _after(curve: Curve) -> AccuracyAfter:
    """Return the accuracy on straight lines between the measured epochs, and constant beyond them."""
    if not curve:
        return lambda _epochs: 0.0
    points = list(curve.items())
    places = [epochs for epochs, _ in points]

    def accuracy(epochs: float) -> float:
        index = bisect_right(places, epochs)
        if index == 0 or index == len(points):
            return points[max(index - 1, 0)][1]
        (left, low), (right, high) = points[index - 1], points[index]
        return low + (high - low) * (epochs - left) / (right - left)

    return accuracy

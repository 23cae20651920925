"""A task whose ranks all have the whole model, and each a share of every batch."""

import math
from collections.abc import Callable, Sequence

import torch

from executors.gang.batches import share
from executors.gang.group import ProcessGroup
from executors.gang.meeting import Meeting
from executors.gang.messages import Membership
from executors.lora.batch import TokenSequence
from executors.lora.lora_task import AdapterState
from executors.tuner.checkpoints import fresh_from
from executors.tuner.data import annealing_exponent, draw_sources, shares
from executors.tuner.faults import fault_of
from executors.tuner.keeper import LastState
from executors.tuner.memory import choose_micro_batch
from executors.tuner.opening import OpenTask, TrainingJob, adapter_for, trained_first
from executors.tuner.reports import measured_step
from executors.tuner.settings import TunerSettings
from executors.tuner.task_rank import LastStep, Succession, agree_on_positions
from executors.tuner.training import Sample, Trainer, TrainingStep
from schemas.merging.commands import TransferMode
from schemas.merging.reports import MeasuredStep


class Replicas:
    """See `TaskRank`."""

    can_reunite = True
    succession: Succession = "none"

    def __init__(
        self,
        mode: TransferMode,
        opened: OpenTask,
        membership: Membership,
        nodes: int,
        settings: TunerSettings,
        device: torch.device,
    ) -> None:
        """Copy the adapter of the present phase to the device."""
        self.jobs = opened.jobs
        self._mode: TransferMode = mode
        self._membership = membership
        self._nodes = nodes
        self._settings = settings
        self._device = device
        self._adapter = adapter_for(mode, opened.jobs, opened.state, device)
        self._group: ProcessGroup | None = None
        self._active: Sequence[TrainingJob] = ()
        self._trainer: Trainer | None = None

    @property
    def is_joined(self) -> bool:
        """See `TaskRank`, also for all methods below."""
        return self._group is not None

    def join(self, meeting: Meeting | None) -> None:
        if meeting is not None:
            self._group = ProcessGroup.form(meeting, self._device, self._settings.peer_timeout_s)

    def agree(self) -> None:
        group = self._group
        if group is None:
            return
        agree_on_positions(self.gather, self.jobs)
        trained = self.jobs[0] if self._mode == "spatial" else trained_first(self.jobs)
        if self._adapter.task.job_id != trained.job_id:
            self._adapter = adapter_for(self._mode, self.jobs, None, self._device)
        group.spread("the adapter", self._adapter.tensors, 0)

    def leave(self) -> None:
        if self._group is not None:
            self._group.close()
            self._group = None

    def gather(self, numbers: Sequence[int]) -> list[list[int]]:
        return (
            [list(numbers)] if self._group is None else self._group.gather("the state of the task", numbers)
        )

    def begin(self, active: Sequence[TrainingJob]) -> None:
        if self._mode == "temporal" and self._adapter.task is not active[0].task:
            # The receiver starts from its donor's final weights.
            donor = self._adapter.state()
            start = fresh_from(donor, active[0].layout)
            self._adapter = adapter_for("temporal", self.jobs, start, self._device)
            assert self._adapter.task is active[0].task, "the donor is over"
        self._active = active
        own = max(1, self._share_size)
        trainer = Trainer(
            active[0].base,
            self._adapter,
            self._device,
            own,
            heads=[job.head for job in active],
            checkpoints_activations=active[0].order.workload.hyperparameters.gradient_checkpointing,
            least_sequence_s=self._settings.least_sequence_s,
        )
        longest = max(
            (self._sequence(job, record) for job in active for record in job.loader.stream.indices(0, own)),
            key=lambda sequence: len(sequence.token_ids),
        )
        sample = Sample(0, 0, longest)
        trainer.micro_batch_size = choose_micro_batch(trainer, sample, own, self._settings)
        self._trainer = trainer

    @property
    def micro_batch_size(self) -> int:
        return self._present_trainer.micro_batch_size

    @micro_batch_size.setter
    def micro_batch_size(self, size: int) -> None:
        self._present_trainer.micro_batch_size = size

    def upcoming(self) -> list[int]:
        sources = self._sources()
        return [sources.count(source) for source in range(len(self._active))]

    def step(self, signals: Sequence[float]) -> TrainingStep:
        number = self._active[0].iterations
        return self._present_trainer.step(self._own(), number, len(self._active), signals, self._add_up)

    def rehearse(self) -> None:
        trainer = self._present_trainer
        trainer.accumulate(self._own()[: trainer.micro_batch_size], 0, len(self._active))
        trainer.adapter.clear()

    def count_right(self, job: TrainingJob, count: int) -> tuple[int, int]:
        mine = share(count, self._membership.rank, self._membership.world)
        sequences = [job.validation[index] for index in mine]
        counts = self._present_trainer.count_right(sequences, job.head)
        sums = torch.tensor(counts, dtype=torch.float64).to(self._device)
        self._add_up(sums)
        right, total = sums.tolist()
        return int(right), int(total)

    def measured(self, steps: Sequence[TrainingStep]) -> MeasuredStep:
        return measured_step(
            steps,
            self.micro_batch_size,
            self._share_size,
            self._membership.world,
            self._nodes,
            self._active[0].base,
        )

    @property
    def state_bytes(self) -> int:
        return 4 * self._adapter.gradient.nbytes

    def state(self) -> AdapterState | None:
        return self._adapter.state() if self._leads else None

    def last_state(self) -> Callable[[], AdapterState] | None:
        return LastState(self._adapter).to_host if self._leads else None

    def remains(self) -> Callable[[], AdapterState] | None:
        return self.last_state()  # every rank has the whole state

    def leave_to_successor(self) -> LastStep:
        raise AssertionError("no task takes over these connected ranks")

    @property
    def _leads(self) -> bool:
        return self._membership.rank == 0

    @property
    def _share_size(self) -> int:
        return len(share(sum(job.batch_size for job in self._active), 0, self._membership.world))

    @property
    def _present_trainer(self) -> Trainer:
        assert self._trainer is not None, "a phase has begun"
        return self._trainer

    def _sources(self) -> list[int]:
        """Return the index of the job in training of each sequence of the next step."""
        active = self._active
        count = sum(job.batch_size for job in active)
        sizes = [len(job.loader.training) for job in active]
        number = active[0].iterations
        steps = max(job.order.workload.target.most_iterations for job in active)
        epochs = math.ceil(steps * count / sum(sizes))
        exponent = annealing_exponent(number * count // sum(sizes), epochs)
        return draw_sources(self.jobs[0].task.seed, number, count, shares(sizes, exponent))

    def _own(self) -> list[Sample]:
        """Return this rank's share of the next step's batch."""
        sources = self._sources()
        streams = [
            iter(job.loader.stream.indices(job.drawn, sources.count(source)))
            for source, job in enumerate(self._active)
        ]
        records = [next(streams[source]) for source in sources]
        return [
            Sample(place, sources[place], self._sequence(self._active[sources[place]], records[place]))
            for place in share(len(sources), self._membership.rank, self._membership.world)
        ]

    @staticmethod
    def _sequence(job: TrainingJob, record: int) -> TokenSequence:
        """Return a record of a job's training data.

        Raises:
            JobError: it cannot be read or tokenised; names the job, of two jobs in one adapter.
        """
        with fault_of(job.job_id):
            return job.loader.training[record]

    def _add_up(self, vector: torch.Tensor) -> None:
        if self._group is not None:
            self._group.add_up("a step", vector)

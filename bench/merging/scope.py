"""The extent of a benchmark: the evaluation of the paper as far as the measurements allow it, or a form of it
that takes a minute and a half."""

from dataclasses import dataclass, replace
from pathlib import Path

from bench.merging.drawn import HALVES, Half
from bench.merging.held_back import SPLITS, Split
from bench.merging.trial import Setting, Trial, rival
from schemas.merging.settings import SchemeName
from solvers.merging.schemes import RIVALS

SCHEMES: tuple[SchemeName, ...] = ("srtf", "tiresias", "optimus", "pollux", "themis", "titan")
assert set(SCHEMES) == set(RIVALS)
FAIR_SCHEMES: tuple[SchemeName, ...] = ("pollux", "themis", "tiresias")
"""Schemes of Figure 12."""
MODELS = ("roberta-base", "vit")
LARGE_NODES = 60
"""Nodes of four GPUs (section 7.2)."""
LARGE_JOBS = 1_500
"""At 1x load; the span is the same at all loads, so at 2x there are twice as many."""


@dataclass(frozen=True)
class Scope:
    """The settings and runs of each part."""

    settings: tuple[Setting, ...]
    """A workload of each model."""
    splits: tuple[Split, ...]
    """In which outcomes of merges are held back from the estimator."""
    rivals_of: tuple[str, ...]
    """Models that every rival is run on."""
    studied: tuple[Setting, ...]
    """Settings in which knowledge, modes, noise, step times and loads are studied."""
    compared: tuple[Setting, ...]
    """Settings in which merging is compared with none: models, halves of their tasks, jobs, loads, seeds."""
    warm_rivals: tuple[SchemeName, ...]
    """Schemes that are run there with warm switches and with cold ones."""
    loads: tuple[float, ...]
    """Loads of Figure 11."""
    large_nodes: int
    large_jobs: int
    large_schemes: tuple[SchemeName, ...]
    """Rivals of Figure 11."""
    noises: tuple[float, ...]
    """Noises of Figures 8 and 13."""
    noise_seeds: int
    datasets: tuple[int, ...]
    """Numbers of datasets of Figure 14 (b)."""

    def rivals(self, setting: Setting, warm_switches: bool = False) -> tuple[Trial, ...]:
        """Each scheme at its published interval, and in the form that also decides when jobs come or go."""
        return tuple(
            rival(setting, scheme, decides, warm_switches)
            for scheme in SCHEMES
            for decides in ("interval", "eager")
        )

    def large(self, setting: Setting, load: float) -> Setting:
        """Many jobs with the mix of a workload, on a large cluster."""
        return Setting(
            setting.profiles,
            setting.model,
            setting.workload,
            nodes=self.large_nodes,
            drawn=round(self.large_jobs * load),
            load=load,
            seed=setting.seed,
        )


def full(settings: tuple[Setting, ...]) -> Scope:
    """All that the measurements have."""
    return Scope(
        settings=settings,
        splits=SPLITS,
        rivals_of=tuple(setting.model for setting in settings),
        studied=settings,
        compared=tuple(
            _drawn(setting, half, jobs, load, setting.seed + seed)
            for setting in settings
            for half in HALVES
            for jobs, seeds in ((30, 2), (60, 2), (240, 1))
            for load in (1.0, 2.0)
            for seed in range(seeds)
        ),
        warm_rivals=("optimus", "pollux"),
        loads=(1.0, 1.5, 2.0),
        large_nodes=LARGE_NODES,
        large_jobs=LARGE_JOBS,
        large_schemes=SCHEMES,
        noises=(0.1, 0.2, 0.4, 0.8, 1.6),
        noise_seeds=3,
        datasets=(3, 5, 7, 9),
    )


def quick(settings: tuple[Setting, ...]) -> Scope:
    """The first jobs of each workload, and a cluster of a tenth of the size."""
    return Scope(
        settings=settings,
        splits=SPLITS[:1],
        rivals_of=(settings[0].model,),
        studied=settings[:1],
        compared=tuple(
            _drawn(setting, half, 30, 2.0, setting.seed) for setting in settings for half in HALVES
        ),
        warm_rivals=("pollux",),
        loads=(1.0,),
        large_nodes=6,
        large_jobs=60,
        large_schemes=("srtf",),
        noises=(0.4,),
        noise_seeds=1,
        datasets=(3,),
    )


def _drawn(setting: Setting, half: Half, jobs: int, load: float, seed: int) -> Setting:
    """Some jobs of half of the tasks of a workload."""
    return replace(setting, first=None, half=half, drawn=jobs, load=load, seed=seed)


QUICK_JOBS = {"roberta-base": 40, "vit": 15}
_OTHER_QUICK_JOBS = 30


def settings_of(
    profiles: Path, model: str | None, workload: Path | None, quick: bool, seed: int
) -> tuple[Setting, ...]:
    """The workloads that a command line asks for: those of the source, one of each model, unless it names
    others."""
    return tuple(
        Setting(
            profiles=str(profiles),
            model=name,
            workload=str(workload or profiles / "workloads" / f"FM-1-{name}.csv"),
            first=QUICK_JOBS.get(name, _OTHER_QUICK_JOBS) if quick else None,
            seed=seed,
        )
        for name in ((model,) if model else MODELS)
    )

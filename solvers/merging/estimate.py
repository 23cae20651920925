"""Estimates for a zone, made in a solver process: iterations of jobs alone, and effects of merges of two
kinds (Ymir, section 4)."""

from schemas.merging.estimates import EstimateProblem, EstimateSolution
from solvers.merging.estimator import YmirEstimator


def estimate(problem: EstimateProblem, time_limit_s: float) -> EstimateSolution:
    """Return all requested estimates. It takes a second at most.

    Args:
        time_limit_s: not used.
    """
    del time_limit_s
    return YmirEstimator().answer(problem)


def smallest() -> EstimateProblem:
    """Return a problem of two kinds, and a former merge of them."""
    return EstimateProblem.model_validate_json(
        """
        {"modes": ["temporal", "spatial"],
         "kinds": [{"task": "a", "dataset_samples": 800, "losses": [2.0, 1.5, 1.2, 1.0, 0.9, 0.85, 0.8, 0.78],
                    "iterations_per_epoch": 100, "most_iterations": 1000, "accuracy_before": 0.1,
                    "target_accuracy": 0.8, "finished_iterations": 300, "finished_accuracy": 0.8},
                   {"task": "b", "dataset_samples": 800, "losses": [2.0, 1.6, 1.3, 1.1, 1.0, 0.95, 0.9, 0.88],
                    "iterations_per_epoch": 100, "most_iterations": 1000, "accuracy_before": 0.1,
                    "target_accuracy": 0.8, "finished_iterations": null, "finished_accuracy": null}],
         "finished": [{"task": "a", "share": 0.3}],
         "scores": [{"donor": 0, "receiver": 1, "score": -0.1}, {"donor": 1, "receiver": 0, "score": -0.1}],
         "outcomes": [{"mode": "temporal", "donor": "a", "donor_samples": 800, "receiver": "b",
                       "receiver_samples": 800, "score": -0.1, "gain": 0.05, "target": 0.8, "best": 0.82,
                       "epochs": 1.0, "own_epochs": 3.0}]}
        """
    )

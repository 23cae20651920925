"""LEEP (Nguyen et al., ICML '20), a score of transferability that needs a run of a model on other data."""

import numpy as np
from numpy.typing import ArrayLike


def leep(source_probabilities: ArrayLike, target_labels: ArrayLike) -> float:
    """Return LEEP: the mean log-likelihood of B's labels, given the predicted classes of A.

    Args:
        source_probabilities: (samples, classes of A): predictions of the model of A for the samples of B.
            Rows sum to 1.
        target_labels: (samples,): the class of each sample in B, from 0.

    Returns:
        The score, at most 0; larger for better.

    Raises:
        ValueError: shapes do not fit, a row is no distribution, or a label is negative.
    """
    theta = np.asarray(source_probabilities, dtype=np.float64)
    labels = np.asarray(target_labels)
    if theta.ndim != 2 or labels.shape != theta.shape[:1] or not len(labels):
        raise ValueError(
            f"predictions have the shape (samples, classes) and labels (samples,), not {theta.shape} and "
            f"{labels.shape}"
        )
    if not np.issubdtype(labels.dtype, np.integer) or labels.min() < 0:
        raise ValueError("labels are whole numbers from 0 on")
    if not np.all(theta >= 0) or not np.allclose(theta.sum(axis=1), 1.0, atol=1e-4):
        raise ValueError("each row of predictions must be a distribution: not negative, with the sum 1")
    joint = np.zeros((labels.max() + 1, theta.shape[1]))
    np.add.at(joint, labels, theta)
    of_source = joint.sum(axis=0)
    conditional = np.divide(joint, of_source, out=np.zeros_like(joint), where=of_source > 0)
    return float(np.mean(np.log(np.einsum("sz,sz->s", conditional[labels], theta))))

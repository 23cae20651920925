"""What must hold on the broker before a worker starts, which creates but one topic."""

from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

from schemas.access import use_of_topics
from schemas.cells import MAX_SNAPSHOT_BYTES
from schemas.topics import COMMANDS, INPUTS, LEDGER, topic_name
from streams.kafka.administration import Administration
from streams.settings import LARGEST_RECORD_BYTES, WorkerSettings

_SEGMENT_MS = 10 * 60 * 1000


class PreflightError(Exception):
    """The topics are not as a worker needs them. The message is one line."""


def prepare(settings: WorkerSettings, snapshots_topic: str, timeout_s: float = 10.0) -> int:
    """Check the topics, create the snapshots topic if need be, and return the ledger's partition count.

    Raises:
        BrokerError: the broker does not answer, topics are missing, or a right is.
        PreflightError: a topic is unfit.
    """
    admin = Administration(settings, timeout_s)
    use = use_of_topics("worker", settings.topic_prefix)
    of_snapshots = {snapshots_topic: use.pop(snapshots_topic)}
    partitions = admin.require(use, {f"{settings.topic_prefix}.{settings.worker_group}"})
    _check_node_partitions(settings, partitions)
    ledger = partitions[topic_name(settings.topic_prefix, LEDGER)]
    _check_inputs(settings, partitions, ledger)
    if snapshots_topic not in admin.metadata():
        config = _snapshots_config()
        # Another worker may be quicker, and then it is left alone.
        admin.create([NewTopic(snapshots_topic, ledger, replication_factor=-1, config=config)])
        admin.await_topics([snapshots_topic])
    found = admin.require(of_snapshots)[snapshots_topic]
    if found != ledger:
        raise PreflightError(
            f"topic {snapshots_topic} has {found} partitions and the ledger {ledger}: a cell's snapshot and "
            "its events must lie in the same one"
        )
    _check_snapshots(admin, snapshots_topic)
    return ledger


def _check_inputs(settings: WorkerSettings, partitions: dict[str, int], ledger: int) -> None:
    """A cell's events of all topics must reach the same worker."""
    for name in (topic_name(settings.topic_prefix, topic) for topic in INPUTS):
        if partitions[name] != ledger:
            raise PreflightError(
                f"topic {name} has {partitions[name]} partitions and the ledger {ledger}: they must have the "
                "same number, so that a cell's events come to one worker"
            )


def _check_node_partitions(settings: WorkerSettings, partitions: dict[str, int]) -> None:
    commands = topic_name(settings.topic_prefix, COMMANDS)
    for node, partition in sorted(settings.node_partitions.items()):
        if partition >= partitions[commands]:
            raise PreflightError(
                f"node {node} is given partition {partition} of {commands}, which has {partitions[commands]}"
            )


def _snapshots_config() -> dict[str, str]:
    return {
        "cleanup.policy": "compact",
        "max.message.bytes": str(MAX_SNAPSHOT_BYTES),
        # Snapshots replace each other quickly, and a starting worker reads whatever is not yet compacted: the
        # segment being written is not, so it is no larger than the largest snapshot needs.
        "segment.bytes": str(LARGEST_RECORD_BYTES),
        "segment.ms": str(_SEGMENT_MS),
        "min.cleanable.dirty.ratio": "0.1",
    }


def _check_snapshots(admin: Administration, name: str) -> None:
    config = admin.configs([name])[name]
    for setting in ("cleanup.policy", "max.message.bytes"):
        wanted = _snapshots_config()[setting]
        if config[setting] != wanted:
            raise PreflightError(f"topic {name}: {setting} is {config[setting]}, wanted {wanted}")

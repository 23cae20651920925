"""The configuration of a single-node Kafka in KRaft mode."""

LOOPBACK = "127.0.0.1"
NODE_ID = 1

# One node needs no more; each partition is a directory with open files.
_INTERNAL_PARTITIONS = "8"


def server_properties(
    listen_host: str, broker_port: int, controller_port: int, log_dir: str
) -> dict[str, str]:
    """Return the server's properties, save for those that name the controller quorum.

    Clients reach the broker at 127.0.0.1 and `broker_port`, whichever host it listens on.
    """
    controller = f"CONTROLLER://{LOOPBACK}:{controller_port}"
    return {
        "node.id": str(NODE_ID),
        "process.roles": "broker,controller",
        "listeners": f"PLAINTEXT://{listen_host}:{broker_port},{controller}",
        "advertised.listeners": f"PLAINTEXT://{LOOPBACK}:{broker_port},{controller}",
        "controller.listener.names": "CONTROLLER",
        "inter.broker.listener.name": "PLAINTEXT",
        "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
        "log.dirs": log_dir,
        "auto.create.topics.enable": "false",
        "group.initial.rebalance.delay.ms": "0",
        "offsets.topic.num.partitions": _INTERNAL_PARTITIONS,
        "offsets.topic.replication.factor": "1",
        "transaction.state.log.num.partitions": _INTERNAL_PARTITIONS,
        "transaction.state.log.replication.factor": "1",
        "transaction.state.log.min.isr": "1",
        "share.coordinator.state.topic.num.partitions": _INTERNAL_PARTITIONS,
        "share.coordinator.state.topic.replication.factor": "1",
        "share.coordinator.state.topic.min.isr": "1",
        # A broker that was killed may come back when its session has run out; the default is 9 s.
        "broker.session.timeout.ms": "3000",
        "broker.heartbeat.interval.ms": "500",
        # The default of 128 MiB, taken at the start, is a quarter of the heap.
        "log.cleaner.dedupe.buffer.size": str(16 * 1024 * 1024),
    }

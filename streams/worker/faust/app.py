"""The Faust application of a worker: its settings, its agents, and the handling of partitions that move."""

import asyncio
import logging
from collections.abc import Awaitable, MutableMapping, Sequence
from typing import Any, cast

import faust
from faust.streams import Stream
from faust.types import StreamT
from faust.types.tables import TableT
from yarl import URL

from schemas.cells import CellConfigured
from schemas.registry import EVENTS_BY_TOPIC
from schemas.topics import CLOCK, FLEET, LEDGER, SNAPSHOTS, dead_letter_name, topic_name
from streams.cell.rules import RuleBook
from streams.kafka.publisher import Publisher
from streams.kafka.transactions import OpenTransactions
from streams.worker.faust.credentials import credentials
from streams.worker.faust.transport import MOST_RECORDS_AT_ONCE, ExactConsumer, ExactTransport, PromptTables
from streams.worker.flow import Clients, Consumer
from streams.worker.intake import Intake, IntakeTopic
from streams.worker.kernels import Kernels
from streams.worker.pipeline import Pipeline
from streams.worker.settings import LARGEST_RECORD_BYTES, WorkerSettings

_COMMIT_EVERY_S = 1.0
_TRANSACTIONS_EVERY_S = 2.0
_GROUP_MARGIN_S = 10.0
"""Time that a group waits for its members beyond their time to flush, and that they wait for its answer
beyond that. A request that a failing broker loses is sent again after it, not after Faust's 90 s."""

_log = logging.getLogger(__name__)


class CellsApp:
    """The pipeline of a worker, connected to Faust."""

    def __init__(
        self,
        settings: WorkerSettings,
        cells: Sequence[CellConfigured],
        ledger_partitions: int,
        book: RuleBook,
    ) -> None:
        """Set up a worker of cells, whose ledgers may have other configurations by now."""
        self._settings = settings
        self._configured = cells
        at_once = {zone.policy.kind for cell in cells for zone in cell.zones if settings.await_kernels}
        self._kernels = Kernels(self._policies, at_once)
        self._faust = _faust_app(settings)
        self._consumer = cast(ExactConsumer, self._faust.consumer)
        intake = _intake(settings, frozenset(cell.cell for cell in cells), ledger_partitions, book)
        self._pipeline = Pipeline(
            settings,
            intake,
            Clients(
                cast(Consumer, self._consumer),
                Publisher(settings, LARGEST_RECORD_BYTES, settings.delivery_timeout_s),
                _Snapshots(_snapshots_table(self._faust, settings.topic_prefix, ledger_partitions)),
            ),
            self._kernels.ready_for,
            self._faust.monitor.count,
        )
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._wire(list(intake.inputs), intake.ledger)

    async def run(self) -> None:
        """Process events until a failure. Never returns.

        Raises:
            Exception: the failure; the process must end without sending or acknowledging anything more.
        """
        work = (self._run_faust(), self._watch_transactions(), self._kernels.run(), *self._pipeline.tasks())
        await asyncio.gather(self._failure, *(asyncio.create_task(self._guard(each)) for each in work))

    async def close(self) -> None:
        """Fold the ledger to its end, secure and acknowledge it, and leave the group."""
        await self._pipeline.drain(self._settings.stop_timeout_s / 2)
        self._faust.consumer.stop_flow()
        self._faust.flow_control.suspend()
        await self._flush()
        await self._faust.stop()

    def _policies(self) -> set[str]:
        """Return the kinds of policies of the cells' zones, in their first and in their present
        configurations."""
        cells = (*self._configured, *self._pipeline.configurations())
        return {zone.policy.kind for cell in cells for zone in cell.zones}

    def _wire(self, inputs: list[str], ledger: str) -> None:
        app, consumer, pipeline = self._faust, self._consumer, self._pipeline

        @app.agent(_raw_topic(app, *inputs), name="intake", concurrency=1)
        async def intake(stream: StreamT[bytes]) -> None:
            await self._guard(pipeline.read_inputs(consumer.records(cast(Stream[bytes], stream))))

        @app.agent(_raw_topic(app, ledger), name="cells", concurrency=1)
        async def cells(stream: StreamT[bytes]) -> None:
            await self._guard(pipeline.read_ledger(consumer.records(cast(Stream[bytes], stream))))

        # Faust stops the flow of events before it sends these signals, and starts it again once the snapshots
        # of the newly assigned partitions are read.
        @app.on_partitions_revoked.connect
        async def revoke(_app: Any, /, *_: Any, **__: Any) -> None:
            await self._guard(asyncio.wait_for(self._flush(), self._settings.stop_timeout_s))
            await pipeline.release()

        @app.on_partitions_assigned.connect
        async def assign(_app: Any, /, *_: Any, **__: Any) -> None:
            await pipeline.release()

    async def _watch_transactions(self) -> None:
        """Log the partitions that an open transaction holds back. Never returns."""
        transactions = OpenTransactions(_log)
        while True:
            await asyncio.sleep(_TRANSACTIONS_EVERY_S)
            for tp, stable, high in self._consumer.ends():
                transactions.look(tp.topic, tp.partition, stable, high)

    async def _run_faust(self) -> None:
        await self._faust.start()
        await self._faust.wait_until_stopped()
        if self._faust.crash_reason is not None:
            raise self._faust.crash_reason

    async def _flush(self) -> None:
        """Secure, acknowledge and commit all records that were read."""
        await self._pipeline.flush()
        await self._faust.consumer.commit()

    async def _guard(self, work: Awaitable[None]) -> None:
        """Await `work`; any exception of it ends the worker.

        Otherwise Faust would restart a failed agent with the next event.
        """
        try:
            await work
        except Exception as error:
            if not self._failure.done():
                self._failure.set_exception(error)
            # The process is about to end: nothing may be done after this.
            await asyncio.Event().wait()


class _Snapshots:
    """Table of Faust with the snapshots; see `SnapshotTable`."""

    def __init__(self, table: TableT[bytes, bytes]) -> None:
        self._table = table

    @property
    def topic(self) -> str:
        return str(self._table.changelog_topic.get_topic_name())

    @property
    def data(self) -> MutableMapping[bytes, bytes]:
        data: MutableMapping[bytes, bytes] = self._table.data
        return data


def _faust_app(settings: WorkerSettings) -> faust.App:
    urls = [URL(f"kafka://{address.strip()}") for address in settings.bootstrap_servers.split(",")]
    data_dir = settings.data_dir / "faust"
    data_dir.mkdir(parents=True, exist_ok=True)
    app = faust.App(
        f"{settings.topic_prefix}.{settings.worker_group}",
        broker=urls,
        broker_credentials=credentials(settings),
        datadir=data_dir,
        store="memory://",
        key_serializer="raw",
        value_serializer="raw",
        autodiscover=False,
        web_enabled=settings.web_enabled,
        web_bind=settings.web_host,
        web_port=settings.web_port,
        worker_redirect_stdouts=False,
        broker_session_timeout=settings.session_timeout_s,
        broker_heartbeat_interval=settings.heartbeat_s,
        broker_commit_interval=_COMMIT_EVERY_S,
        broker_max_poll_records=MOST_RECORDS_AT_ONCE,
        broker_rebalance_timeout=settings.stop_timeout_s + _GROUP_MARGIN_S,
        broker_request_timeout=settings.stop_timeout_s + 2 * _GROUP_MARGIN_S,
        consumer_auto_offset_reset="earliest",
        consumer_max_fetch_size=LARGEST_RECORD_BYTES,
        consumer_group_instance_id=settings.worker_name,
        # Events are acknowledged in groups, so waiting for each one would never end.
        stream_wait_empty=False,
        reply_create_topic=False,
        topic_allow_declare=False,
        topic_disable_leader=True,
        table_standby_replicas=settings.standby_replicas,
        TableManager=PromptTables,
    )
    app.transport = ExactTransport(urls, app)
    return app


def _snapshots_table(app: faust.App, prefix: str, partitions: int) -> TableT[bytes, bytes]:
    return app.Table(
        SNAPSHOTS,
        partitions=partitions,
        key_type=bytes,
        value_type=bytes,
        # As for Faust's own changelogs: no stream reads it, so none is ever late.
        changelog_topic=_raw_topic(app, topic_name(prefix, SNAPSHOTS), acks=False),
        help="the latest snapshot of each cell",
    )


def _raw_topic(app: faust.App, *names: str, acks: bool = True) -> Any:
    return app.topic(
        *names, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="raw", acks=acks
    )


def _intake(settings: WorkerSettings, cells: frozenset[str], partitions: int, book: RuleBook) -> Intake:
    prefix = settings.topic_prefix
    inputs = {
        topic_name(prefix, name): IntakeTopic(
            events, dead_letter_name(topic_name(prefix, name)), in_own_partition=name in (FLEET, CLOCK)
        )
        for name, events in EVENTS_BY_TOPIC.items()
    }
    return Intake(inputs, topic_name(prefix, LEDGER), cells, settings.max_tick_ahead_s, partitions, book)

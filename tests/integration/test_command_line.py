"""The command line against a real broker, worker and clock; executors are in the tests of the executors."""

import json
import re
from collections.abc import Callable, Iterator
from decimal import Decimal

import pytest

from infra.cli import run
from infra.deployment.deployment import Deployment, DeploymentSpec
from infra.deployment.deployment_folders import Folders
from infra.log.target import Target
from schemas.kafka_connection import KafkaConnection
from schemas.topics import SNAPSHOTS
from streams.kafka.reader import KafkaReader
from streams.replay.present import latest_snapshot
from tests.integration.deployment import DEMO_CELLS, bids_file, demo_bid, until

Millrace = Callable[..., str]


@pytest.fixture(scope="module")
def deployment(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Deployment]:
    """A worker and a clock for the demo's cell, under a prefix of their own."""
    folders = Folders(tmp_path_factory.mktemp("deployment"))
    folders.create()
    layout = DeploymentSpec(
        DEMO_CELLS, folders, Target(KafkaConnection(bootstrap_servers=kafka), "test-cli"), run_executors=False
    )
    running = Deployment(layout, report=lambda line: None)
    with running.running():
        yield running


@pytest.fixture
def millrace(deployment: Deployment, capsys: pytest.CaptureFixture[str]) -> Millrace:
    """Runs a command that must do, and returns what it prints."""
    target = deployment.spec.target

    def call(*arguments: str) -> str:
        where = ["--bootstrap-servers", target.kafka.bootstrap_servers, "--topic-prefix", target.prefix]
        status = run([*arguments, *where])
        output = capsys.readouterr()
        assert (status, output.err) == (0, "")
        return output.out

    return call


def test_a_bid_is_decided_explained_watched_and_proven(millrace, tmp_path):
    file = bids_file(tmp_path / "bids.yaml", demo_bid("rich", 3), demo_bid("poor", "0.000001"))
    decided = {
        line["job_id"]: line for line in map(json.loads, millrace("submit", file, "--json").splitlines())
    }
    assert decided["rich"]["state"] == "admitted"
    assert decided["poor"]["reason"] == "price_not_below_bid"

    story = millrace("explain", "rich")
    assert story.startswith("Job rich in cell demo: admitted\n")
    assert "ann bids 3.0000" in story
    assert "price: operation " in story
    assert "plan: 96 samples: node-" in story
    # Meanwhile a slot may have begun.
    assert millrace("explain", "rich", "--days", "1").startswith(story)
    chapters = json.loads(millrace("explain", "poor", "--json"))["chapters"]
    assert [chapter["type"] for chapter in chapters] == [
        "millrace.job.submitted.v1",
        "millrace.job.rejected.v1",
    ]

    board = millrace("watch", "--once")
    assert "rich" in board
    assert "rejected (price_not_below_bid)" in board
    streamed = [json.loads(line) for line in millrace("watch", "--once", "--json").splitlines()]
    assert {"event", "decision"} == {line["kind"] for line in streamed}

    assert "every decision follows from the ledger" in millrace("replay")


def test_quote_bounds_payment_of_bid(millrace, tmp_path):
    file = bids_file(tmp_path / "bids.yaml", demo_bid("asked", 3))
    (quoted,) = map(json.loads, millrace("quote", file, "--json").splitlines())
    (decided,) = map(json.loads, millrace("submit", file, "--json").splitlines())
    assert quoted["reason"] == "plan_found"
    assert decided["payment_micros"] <= quoted["evidence"]["offer"]["lowest_winning_bid_micros"]
    answer = re.search(r"a bid of ([0-9.,]+) wins now\n.* price: (.*?)\n", millrace("quote", file), re.DOTALL)
    assert answer is not None
    parts = sum(Decimal(amount) for amount in re.findall(r"[0-9]+\.[0-9]+", answer[2]))
    # A bid must be above the price, if only by a micro.
    assert abs(Decimal(answer[1]) - parts - Decimal("0.000001")) <= Decimal("0.000002")


def test_a_job_is_withdrawn_by_its_user_once(deployment, millrace, tmp_path, capsys):
    target = deployment.spec.target
    where = ["--bootstrap-servers", target.kafka.bootstrap_servers, "--topic-prefix", target.prefix]

    def refused(*arguments: str) -> str:
        assert run(["withdraw", *arguments, *where]) == 1
        return capsys.readouterr().err

    # Slots of the demo last four seconds, and a job that has begun is not withdrawn: it begins late enough.
    bids = [demo_bid(f"unwanted-{number}", 3) for number in range(3)]
    for bid in bids:
        bid["workload"]["needs_preprocessing"] = True
        bid["terms"]["deadline_in_s"] = 46
    quotes = tmp_path / "quotes.yaml"
    quote = {"cell": "demo", "vendor": "couriers", "fixed_price": 0.25, "price_per_thousand_samples": 0}
    quotes.write_text(json.dumps([{**quote, "fixed_delay_s": 28, "delay_per_thousand_samples_s": 0}]))
    millrace("vendor-quote", str(quotes))
    millrace("submit", bids_file(tmp_path / "bids.yaml", *bids))
    quotes.write_text(json.dumps({"cell": "demo", "vendor": "couriers", "leaves": True}))
    millrace("vendor-quote", str(quotes))

    assert refused("unwanted-0", "--user", "bob") == "millrace: job unwanted-0 is of another user\n"
    theirs = refused("unwanted-0", "--user", "bob", "--cell", "demo")
    assert "unwanted-0: not withdrawn (not_the_owner): " in theirs
    assert millrace("withdraw", "unwanted-0", "--user", "ann").startswith("unwanted-0 withdrawn: ")
    (line,) = millrace("withdraw", "unwanted-1", "--user", "ann", "--cell", "demo", "--json").splitlines()
    assert json.loads(line)["state"] == "withdrawn"
    late = millrace("withdraw", "unwanted-2", "--user", "ann", "--no-wait")
    assert late == "unwanted-2: withdrawal requested\n"
    until(lambda: "withdrawn" in millrace("explain", "unwanted-2").splitlines()[0], "the last is withdrawn")
    assert refused("unwanted-0", "--user", "ann") == "millrace: job unwanted-0 is over: withdrawn\n"
    over = refused("unwanted-0", "--user", "ann", "--cell", "demo")
    assert "unwanted-0: not withdrawn (unknown_job): " in over
    assert refused("nobodys", "--user", "ann").startswith("millrace: no job nobodys was decided: ")


def test_vendor_quote_applies_to_later_bids(millrace, tmp_path, deployment, capsys):
    file = tmp_path / "quotes.yaml"
    quote = {"cell": "demo", "vendor": "couriers", "fixed_price": 0.25, "price_per_thousand_samples": 0}
    file.write_text(json.dumps([{**quote, "fixed_delay_s": 0, "delay_per_thousand_samples_s": 0}]))
    assert "asks 0.2500" in millrace("vendor-quote", str(file))
    asked = bids_file(tmp_path / "bids.yaml", demo_bid("prepared", 3, needs_preprocessing=True))
    (met,) = map(json.loads, millrace("quote", asked, "--json").splitlines())
    assert (
        met["evidence"]["offer"]["plan"]["vendor"],
        met["evidence"]["offer"]["price"]["vendor_micros"],
    ) == ("couriers", 250_000)
    file.write_text(json.dumps({"cell": "demo", "vendor": "couriers", "leaves": True}))
    assert "takes its quote back" in millrace("vendor-quote", str(file))
    (unmet,) = map(json.loads, millrace("quote", asked, "--json").splitlines())
    assert unmet["reason"] == "no_vendor"
    file.write_text(json.dumps({"cell": "demo", "vendor": "strangers", "leaves": True}))
    target = deployment.spec.target
    where = ["--bootstrap-servers", target.kafka.bootstrap_servers, "--topic-prefix", target.prefix]
    assert run(["vendor-quote", str(file), *where]) == 1
    assert "has no vendor strangers: its vendors are annotators" in capsys.readouterr().err


def test_slots_are_commanded_as_time_goes_on(millrace, tmp_path):
    file = bids_file(tmp_path / "bids.yaml", demo_bid("timely", 3))
    millrace("submit", file, "--no-wait")

    def is_shown() -> bool:
        return "slot " in millrace("explain", "timely") if "timely" in millrace("watch", "--once") else False

    until(is_shown, "a slot of the job is assigned")


def test_an_exported_log_is_proven_from_its_files(millrace, tmp_path, capsys):
    millrace("replay", "--export", str(tmp_path / "log"))
    assert run(["replay", "--from", str(tmp_path / "log" / "ledger.jsonl"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["ok"]
    decisions = tmp_path / "log" / "decisions.jsonl"
    altered = bytearray(decisions.read_bytes())
    end = altered.index(b"\n", len(altered) // 2)
    altered[end - 3] ^= 1  # the last digit of a link
    decisions.write_bytes(altered)
    assert run(["replay", "--from", str(tmp_path / "log" / "ledger.jsonl")]) == 1
    error = capsys.readouterr().err
    assert "1 differences, the first altered: decision " in error
    assert f" at {decisions}:{altered.count(10, 0, end) + 1}: " in error


def test_bid_for_unserved_cell_is_refused(deployment, tmp_path, capsys, monkeypatch):
    target = deployment.spec.target
    file = bids_file(tmp_path / "bids.yaml", {**demo_bid("lost", 3), "cell": "elsewhere"})
    status = run(
        [
            "submit",
            file,
            "--bootstrap-servers",
            target.kafka.bootstrap_servers,
            "--topic-prefix",
            target.prefix,
        ]
    )
    assert status == 1
    assert capsys.readouterr().err == "millrace: lost: refused: cell elsewhere is not served here\n"


def test_state_of_cell_follows_its_log(millrace, deployment, tmp_path, capsys):
    millrace("submit", bids_file(tmp_path / "bids.yaml", demo_bid("kept", 3)))
    target = deployment.spec.target

    def has_snapshot() -> bool:
        with KafkaReader(target.kafka) as reader:
            return latest_snapshot(reader, target.topic(SNAPSHOTS), "demo") is not None

    until(has_snapshot, "the worker writes a snapshot")
    state = json.loads(millrace("state", "demo", "--json"))
    assert state["zones"]["tiny"]["jobs"]["kept"]["bid_micros"] == 3_000_000
    millrace("replay", "--expect-head", f"demo={state['ledger_offset']}:{state['chain']}")
    where = ["--bootstrap-servers", target.kafka.bootstrap_servers, "--topic-prefix", target.prefix]
    assert run(["state", "nowhere", *where]) == 1
    assert "the ledger has no event of cell nowhere: it has demo" in capsys.readouterr().err


def test_unknown_job_cannot_be_explained(deployment, capsys):
    target = deployment.spec.target
    where = ["--bootstrap-servers", target.kafka.bootstrap_servers, "--topic-prefix", target.prefix]
    assert run(["explain", "nobody", *where]) == 1
    assert capsys.readouterr().err == "millrace: the log has no job nobody\n"
    assert run(["explain", "nobody", "--days", "0.5", *where]) == 1
    assert capsys.readouterr().err == "millrace: the log has no job nobody in the last 0.5 days\n"


def test_executor_for_unknown_node_names_cells(deployment, capsys):
    target = deployment.spec.target
    where = ["--bootstrap-servers", target.kafka.bootstrap_servers, "--topic-prefix", target.prefix]
    assert run(["executor", "--node", "nobody", *where]) == 1
    assert capsys.readouterr().err == (
        "millrace: no cell has a node nobody (cells: demo): `millrace nodes register` makes it known\n"
    )


def test_topics_are_listed_and_checked(millrace, kafka, capsys, topic_prefix):
    rows = json.loads(millrace("topics", "list", "--json"))
    assert "test-cli.ledger" in {row["name"] for row in rows}
    assert "as specified" in millrace("topics", "check")
    where = ["--bootstrap-servers", kafka, "--topic-prefix", topic_prefix]
    assert run(["topics", "check", *where]) == 1
    assert "topics are missing" in capsys.readouterr().err
    assert run(["topics", "create", *where]) == 0
    assert run(["topics", "check", *where]) == 0
    assert run(["topics", "check", "--partitions", "9", *where]) == 1
    assert "partitions is 4, expected 9" in capsys.readouterr().err

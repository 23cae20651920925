"""Data that is checked ahead of its task."""

import time
from pathlib import Path

import pytest

from executors.lora.dataset import DatasetError, DatasetIndex, DatasetRoot, FileIdentity
from executors.lora.records import RecordForm
from executors.lora.shared_base import SharedBase
from executors.tuner.data import Loader, SharedTokenizer
from executors.tuner.indexing import Indexer, IndexFiles
from executors.tuner.settings import TunerSettings
from schemas.fleet import RunFinished
from schemas.merging.commands import LoaderPrewarmed
from tests.support.executors import write_dataset
from tests.support.tuner_nodes import Fleet, order, workload


def until(condition) -> None:
    deadline_s = time.monotonic() + 10.0
    while not condition():
        assert time.monotonic() < deadline_s
        time.sleep(0.005)


def test_records_are_tokenised_once(base: SharedBase, tuner_settings: TunerSettings) -> None:
    root, tokenizer = DatasetRoot(tuner_settings.dataset_root), SharedTokenizer(base.tokenizer)
    loader = Loader(workload(), root, tokenizer, tuner_settings)
    assert loader.training[3] is loader.training[3]
    tight = tuner_settings.model_copy(update={"kept_tokens": 0})
    loader = Loader(workload(), root, tokenizer, tight)
    assert loader.training[3] == loader.training[3]
    assert loader.training[3] is not loader.training[3]


def test_what_was_checked_ahead_is_not_read_again(tuner_settings: TunerSettings, tmp_path: Path) -> None:
    root, files = DatasetRoot(tuner_settings.dataset_root), IndexFiles(tmp_path / "indices")
    indexer = Indexer(root, files)
    indexer.prepare("pairs.jsonl", drop_s=1_030.0)
    indexer.prepare("bad.jsonl", drop_s=1_030.0)
    asked = []

    def find(identity: FileIdentity, form: RecordForm) -> DatasetIndex | None:
        asked.append(files.find(identity, form))
        return asked[-1]

    with root.open("pairs.jsonl") as read, root.open("pairs.jsonl", find) as known:
        assert (known.digest, len(known)) == (read.digest, len(read))
        assert [known[index] for index in range(48)] == [read[index] for index in range(48)]
    assert asked[0] is not None
    with pytest.raises(DatasetError, match="line 1: not JSON"):
        root.open("bad.jsonl", find)
    indexer.drop_expired(1_029.0)
    assert len(list((tmp_path / "indices").iterdir())) == 1
    indexer.drop_expired(1_030.0)
    assert not list((tmp_path / "indices").iterdir())


def test_index_belongs_to_one_version_of_file(tuner_settings: TunerSettings, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    folder.mkdir()
    write_dataset(folder / "d.jsonl", records=9)
    root, files = DatasetRoot(folder), IndexFiles(tmp_path / "indices")
    Indexer(root, files).prepare("d.jsonl", drop_s=1e9)
    write_dataset(folder / "d.jsonl", records=11, seed=8)
    with root.open("d.jsonl", files.find) as dataset:
        assert len(dataset) == 11
    Indexer(root, files).prepare("d.jsonl", drop_s=1e9)
    for path in (tmp_path / "indices").iterdir():
        path.write_bytes(path.read_bytes()[:-8])  # torn
    with root.open("d.jsonl", files.find) as dataset:
        assert len(dataset) == 11


def test_node_prepares_ordered_loader(fleet: Fleet) -> None:
    command = LoaderPrewarmed(zone="z", node="n1", order=order("a", workload(3)), starts_s=time.time() + 5.0)
    assert fleet.nodes["n1"].runner.validate(command) is None
    fleet.send(command)
    bad = order("b", workload(dataset="bad.jsonl"))
    fleet.send(command.model_copy(update={"order": bad}))
    indices = fleet.root / "state" / "c" / "tuner-indices" / "n1"
    until(lambda: len(list(indices.glob("*.index"))) == 2)
    # A base model that cannot be prepared harms no task.
    fleet.assign(order("a", workload(3)))
    fleet.until_over("a/1")
    assert len(fleet.reports(RunFinished)) == 1

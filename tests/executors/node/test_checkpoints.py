"""A checkpoint is whole or is not there, and belongs to its writer."""

import json
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from executors.node.checkpoints import FINAL, CheckpointStore, StaleWriterError

FILES = {"weights.bin": b"weights" * 100, "state.json": b"{}"}


@pytest.fixture
def store(tmp_path: Path) -> CheckpointStore:
    return CheckpointStore(tmp_path)


def test_newest_has_highest_token_then_most_samples(store: CheckpointStore) -> None:
    assert store.newest("job") is None
    store.save("job", 9, 500, FILES)
    store.save("job", 10, 40, FILES)
    store.save("job", 10, 100, FILES)
    newest = store.newest("job")
    assert (newest.token, newest.samples_done, dict(newest.files)) == (10, 100, FILES)


def test_only_the_last_two_are_kept(store: CheckpointStore, tmp_path: Path) -> None:
    for samples in (8, 16, 24, 32):
        store.save("job", 1, samples, FILES)
    store.save("other", 1, 8, FILES)
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["1-24", "1-32"]


def test_conclusion_replaces_all_checkpoints(store: CheckpointStore, tmp_path: Path) -> None:
    store.save("job", 3, 8, FILES)
    store.save("job", 4, 16, FILES)
    with pytest.raises(StaleWriterError, match="replaced by 4"):
        store.conclude("job", 3, 24, {"end": b"3"})
    store.conclude("job", 4, 24, {"end": b"4"})
    store.conclude("job", 5, 24, {"end": b"5"})
    with pytest.raises(StaleWriterError, match="is over"):
        store.save("job", 9, 32, FILES)
    newest = store.newest("job")
    assert (newest.token, newest.samples_done, newest.files) == (4, 24, {"end": b"4"})
    assert [path.name for path in (tmp_path / "job").iterdir()] == [FINAL]


def test_a_conclusion_that_does_not_verify_ends_nothing(
    store: CheckpointStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    sound = store.save("job", 3, 8, FILES)
    store.conclude("job", 3, 24, {"end": b"3"})
    assert store.is_concluded("job")
    final = tmp_path / "job" / FINAL
    (final / "end").write_bytes(b"?")
    assert not store.is_concluded("job")
    assert store.conclusion("job") is None
    assert f"{final} of a finished job does not verify" in caplog.text
    # The job can go on, and be concluded again.
    assert store.save("job", 3, 8, FILES) == sound
    assert store.newest("job").path == sound
    store.conclude("job", 3, 24, {"end": b"3"})
    assert store.conclusion("job").files == {"end": b"3"}
    assert [path.name for path in (tmp_path / "job").iterdir()] == [FINAL]


def test_unwritten_conclusion_costs_no_checkpoint(
    store: CheckpointStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(descriptor: int) -> None:
        raise OSError("disk gone")

    store.save("job", 3, 8, FILES)
    monkeypatch.setattr(os, "fsync", failing)
    with pytest.raises(OSError, match="disk gone"):
        store.conclude("job", 3, 8, {"end": b""})
    assert store.newest("job").files == FILES


def test_stale_writer_is_refused_behind_corrupt_checkpoint(store: CheckpointStore, tmp_path: Path) -> None:
    store.save("job", 4, 8, FILES)
    newer = store.save("job", 5, 4, FILES)
    with pytest.raises(StaleWriterError, match="token 4 was replaced by 5"):
        store.save("job", 4, 16, FILES)
    (newer / "manifest.json").write_bytes(b"")
    with pytest.raises(StaleWriterError):
        store.save("job", 4, 16, FILES)
    assert store.newest("job").samples_done == 8


def test_every_single_damaged_byte_is_noticed(store: CheckpointStore) -> None:
    store.save("job", 1, 8, FILES)
    path = store.save("job", 1, 16, FILES)
    draw = random.Random(0)
    for name in FILES:
        sound = (path / name).read_bytes()
        for _ in range(20):
            damaged = bytearray(sound)
            damaged[draw.randrange(len(sound))] ^= 1 << draw.randrange(8)
            (path / name).write_bytes(damaged)
            assert store.newest("job").samples_done == 8
        (path / name).write_bytes(sound)
        assert store.newest("job").samples_done == 16


@pytest.mark.parametrize("name", ["manifest.json", "weights.bin", "state.json"])
@pytest.mark.parametrize("damage", ["cut", "grown", "gone"])
def test_torn_checkpoint_falls_back_to_former(store: CheckpointStore, name: str, damage: str) -> None:
    store.save("job", 1, 8, FILES)
    file = store.save("job", 1, 16, FILES) / name
    content = file.read_bytes()
    file.unlink()
    if damage != "gone":
        file.write_bytes(content[:-1] if damage == "cut" else content + b"}")
    assert store.newest("job").samples_done == 8
    store.save("job", 1, 16, FILES)
    assert store.newest("job").samples_done == 16


def test_damaged_checkpoint_is_logged_once(
    store: CheckpointStore, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for damaged in (store.save("job", 1, samples, FILES) for samples in (8, 16)):
        (damaged / "weights.bin").write_bytes(b"torn")
    for reader in (store, store, CheckpointStore(tmp_path)):
        assert reader.newest("job") is None
    store.save("job", 1, 24, FILES)
    warned = [record.getMessage() for record in caplog.records]
    assert len(warned) == 2
    for samples in (8, 16):
        assert any(f"job/1-{samples} does not verify" in text for text in warned)


def test_rewritten_damaged_checkpoint_is_logged_again(
    store: CheckpointStore, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        path = store.save("job", 1, 8, FILES)
        (path / "weights.bin").write_bytes(b"torn")
        assert store.newest("job") is store.newest("job") is None
    assert len(caplog.records) == 2


def test_moved_checkpoint_is_not_trusted(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save("job", 1, 8, FILES)
    shutil.copytree(path, tmp_path / "job" / "7-8")
    shutil.copytree(path, tmp_path / "thief" / "1-8")
    assert store.newest("job").token == 1
    assert store.newest("thief") is None


def test_a_manifest_cannot_name_files_elsewhere(store: CheckpointStore, tmp_path: Path) -> None:
    path = store.save("job", 1, 8, FILES)
    (tmp_path / "job" / "outside").write_bytes(FILES["state.json"])
    manifest = json.loads((path / "manifest.json").read_text())
    manifest["files"]["../outside"] = manifest["files"].pop("state.json")
    (path / "manifest.json").write_text(json.dumps(manifest))
    assert store.newest("job") is None


def test_crash_while_writing_keeps_former_checkpoint(
    store: CheckpointStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save("job", 1, 8, FILES)
    sync = os.fsync
    # Two files, the manifest, the folder: what reaches the disk before the folder gets its name.
    for survived in range(4):
        left = iter(range(survived))

        def failing(descriptor: int, left: Iterator[int] = left) -> None:
            if next(left, None) is None:
                raise OSError("disk gone")
            sync(descriptor)

        with monkeypatch.context() as patch:
            patch.setattr(os, "fsync", failing)
            with pytest.raises(OSError, match="disk gone"):
                store.save("job", 1, 16, FILES)
        assert store.newest("job").samples_done == 8
    (tmp_path / "job" / ".unfinished-1-12-killed").mkdir()
    store.save("job", 2, 24, FILES)
    assert sorted(path.name for path in (tmp_path / "job").iterdir()) == ["1-8", "2-24"]


@pytest.mark.parametrize("job_id", ["", "..", ".hidden", "a/b", "/abs", "a\0b", "a\n", "x" * 200])
def test_a_job_id_cannot_lead_elsewhere(store: CheckpointStore, job_id: str) -> None:
    with pytest.raises(ValueError, match="should match pattern"):
        store.save(job_id, 1, 8, FILES)

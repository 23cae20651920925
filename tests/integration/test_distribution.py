import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.kafka.distribution import kafka_jars, kafka_version
from infra.kafka.settings import BrokerSettings
from streams.kafka.faults import BrokerError

REPOSITORY = Path(__file__).parents[2]

FETCH = """
from infra.kafka.distribution import kafka_jars
from infra.kafka.settings import BrokerSettings
print(kafka_jars(BrokerSettings()), flush=True)
"""

# Sends Maven to a repository of the test's own.
MIRROR = """
<settings>
  <mirrors><mirror><id>test</id><mirrorOf>*</mirrorOf><url>file://{repository}</url></mirror></mirrors>
</settings>
"""

PLUGIN = "org/apache/maven/plugins/maven-dependency-plugin/3.8.1/maven-dependency-plugin-3.8.1.pom"


def _fetch(cache_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH],
        cwd=REPOSITORY,
        env={**os.environ, "MILLRACE_CACHE_DIR": str(cache_dir)},
        stdout=subprocess.PIPE,
        text=True,
    )


def test_a_cache_is_filled_once_by_two_processes_after_one_that_was_killed(tmp_path: Path) -> None:
    killed = _fetch(tmp_path)
    deadline_s = time.monotonic() + 60
    while not (staging := list(tmp_path.glob(".staging-*/jars/*.jar"))):
        assert time.monotonic() < deadline_s
        assert killed.poll() is None
        time.sleep(0.001)
    killed.kill()
    killed.communicate()
    assert staging
    assert not list(tmp_path.glob("kafka-*"))

    racing = [_fetch(tmp_path), _fetch(tmp_path)]
    folders = {Path(process.communicate(timeout=120)[0].strip()) for process in racing}
    assert [process.returncode for process in racing] == [0, 0]
    (folder,) = folders
    assert (folder / f"kafka_2.13-{kafka_version()}.jar").stat().st_size > 1_000_000
    assert list(folder.glob("log4j-core-*.jar"))
    assert {path.name for path in tmp_path.iterdir()} == {folder.name, "lock"}


def _send_maven_to(repository: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (home / ".m2").mkdir(parents=True)
    (home / ".m2" / "settings.xml").write_text(MIRROR.format(repository=repository))
    monkeypatch.setenv("MAVEN_OPTS", f"-Duser.home={home}")


def test_a_wrong_checksum_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plugin = tmp_path / "repository" / PLUGIN
    plugin.parent.mkdir(parents=True)
    plugin.write_text("<project/>")
    plugin.with_name(f"{plugin.name}.sha1").write_text("0" * 40)
    _send_maven_to(tmp_path / "repository", tmp_path / "home", monkeypatch)
    with pytest.raises(BrokerError, match=r"^Maven could not fetch Kafka .*Checksum validation failed.*$"):
        kafka_jars(BrokerSettings(cache_dir=tmp_path / "cache"))


def test_an_unreachable_repository_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _send_maven_to(tmp_path / "nowhere", tmp_path / "home", monkeypatch)
    cache_dir = tmp_path / "cache"
    with pytest.raises(BrokerError, match=r"^Maven could not fetch Kafka .*: check the network.*$"):
        kafka_jars(BrokerSettings(cache_dir=cache_dir))
    assert [path.name for path in cache_dir.iterdir()] == ["lock"]


def test_no_maven_and_an_empty_cache_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    java = shutil.which("java")
    assert java is not None
    (tmp_path / "java").symlink_to(java)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(BrokerError, match=r"^Kafka .* is not in the cache .*: install Maven .*$"):
        kafka_jars(BrokerSettings(cache_dir=tmp_path / "cache"))


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    with pytest.raises(BrokerError, match=r"^Cannot keep Kafka's jars in .*MILLRACE_CACHE_DIR.*$"):
        kafka_jars(BrokerSettings(cache_dir=in_the_way / "cache"))

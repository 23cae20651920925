"""Kafka's jars, fetched from a repository of the test's own into an empty cache."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from infra.kafka.jars import check_jars, kafka_jars, kafka_version, pinned_jars
from infra.kafka.settings import BrokerSettings
from streams.kafka.faults import BrokerError
from tests.support.small_disk import small_disk

REPOSITORY = Path(__file__).parents[2]
JARS = pinned_jars()
ONE = JARS[-1]

FETCH = """
from infra.kafka.jars import kafka_jars
from infra.kafka.settings import BrokerSettings
print(kafka_jars(BrokerSettings()), flush=True)
"""

SETTINGS = "<settings><mirrors><mirror><mirrorOf>*</mirrorOf><url>{}</url></mirror></mirrors></settings>"


@dataclass
class MavenRepository:
    """A repository at an address on loopback, which can be made to fail."""

    folder: Path
    url: str
    requests: Counter[str] = field(default_factory=Counter)
    failing: dict[str, int] = field(default_factory=dict)
    """Number of further requests for a path that are answered with status 503."""
    answers: threading.Event = field(default_factory=threading.Event)
    """Cleared, the file ONE arrives byte by byte, and never wholly."""

    def damage(self) -> None:
        """Put something else in the place of a jar."""
        (self.folder / ONE.path).unlink()
        (self.folder / ONE.path).write_text("<html>Please log in</html>")


class Server(ThreadingHTTPServer):
    """A server whose clients may give up: it prints no traceback then."""

    def handle_error(self, request: object, client_address: object) -> None: ...


class Handler(SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def __init__(self, repository: MavenRepository, *arguments: object) -> None:
        self._repository = repository
        super().__init__(*arguments, directory=str(repository.folder))  # type: ignore[arg-type]

    def do_GET(self) -> None:
        path = self.path.removeprefix("/")
        self._repository.requests[path] += 1
        if self._repository.failing.get(path, 0) > 0:
            self._repository.failing[path] -= 1
            self.send_error(503)
        elif path == ONE.path and not self._repository.answers.is_set():
            self._trickle()
        else:
            super().do_GET()

    def _trickle(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000000")
        self.end_headers()
        with suppress(OSError):
            while not self._repository.answers.wait(0.02):
                self.wfile.write(b".")
        self.close_connection = True

    def log_message(self, format: str, *arguments: object) -> None:
        """Nothing: the requests are counted."""


@pytest.fixture
def repository(tmp_path: Path) -> Iterator[MavenRepository]:
    cached = kafka_jars(BrokerSettings())
    folder = tmp_path / "repository"
    for jar in JARS:
        (folder / jar.path).parent.mkdir(parents=True, exist_ok=True)
        (folder / jar.path).symlink_to(cached / jar.name)
    repository = MavenRepository(folder, url="")
    repository.answers.set()
    with Server(("127.0.0.1", 0), partial(Handler, repository)) as server:
        repository.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield repository
        repository.answers.set()
        server.shutdown()
        thread.join()


@pytest.fixture
def settings(repository: MavenRepository, tmp_path: Path) -> BrokerSettings:
    """Settings with an empty cache and the test's repository."""
    return BrokerSettings(cache_dir=tmp_path / "cache", maven_repository=repository.url)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home folder, of this process and of Maven."""
    home = tmp_path / "home"
    (home / ".m2").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.setenv("MAVEN_OPTS", f"-Duser.home={home}")
    return home


def _at_rest(repository: MavenRepository) -> Counter[str]:
    """The requests so far, with those that a killed process has sent and that are read late."""
    before = repository.requests.copy()
    while True:
        time.sleep(0.5)
        if repository.requests == before:
            return before
        before = repository.requests.copy()


def test_a_damaged_jar_is_fetched_again(repository: MavenRepository, settings: BrokerSettings) -> None:
    folder = kafka_jars(settings)
    (folder / JARS[0].name).write_bytes(b"cut short")
    (folder / JARS[1].name).unlink()
    assert kafka_jars(settings) == folder
    check_jars(JARS, folder)


def test_two_processes_fill_cache_once_after_kill(tmp_path: Path, repository: MavenRepository) -> None:
    cache = tmp_path / "cache"
    repository.answers.clear()
    killed = _fetch(cache, repository)
    _await_some_jars(cache, killed)
    killed.kill()
    killed.communicate()
    assert not list(cache.glob("kafka-*"))
    repository.answers.set()

    before = _at_rest(repository)
    racing = [_fetch(cache, repository), _fetch(cache, repository)]
    folders = {Path(process.communicate()[0].strip()) for process in racing}
    assert [process.returncode for process in racing] == [0, 0]
    (folder,) = folders
    assert {path.name for path in folder.iterdir()} == {jar.name for jar in JARS}
    assert {path.name for path in cache.iterdir()} == {folder.name, "lock"}
    assert repository.requests - before == Counter(jar.path for jar in JARS)


def test_ctrl_c_leaves_nothing(repository: MavenRepository, settings: BrokerSettings) -> None:
    repository.answers.clear()
    interrupted = _fetch(settings.cache_dir, repository)
    _await_some_jars(settings.cache_dir, interrupted)
    interrupted.send_signal(signal.SIGINT)
    interrupted.communicate()
    assert interrupted.returncode == -signal.SIGINT
    _left_nothing(settings)


def test_what_fails_for_a_moment_is_tried_again(
    repository: MavenRepository, settings: BrokerSettings, capfd: pytest.CaptureFixture[str]
) -> None:
    repository.failing = {JARS[0].path: 2, JARS[1].path: 1}
    assert len(list(kafka_jars(settings).iterdir())) == len(JARS)
    assert [repository.requests[jar.path] for jar in JARS[:3]] == [3, 2, 1]
    assert capfd.readouterr().err == f"Kafka {kafka_version()}, {len(JARS)} jars to be fetched\n"


def test_a_damaged_jar_is_one_line(repository: MavenRepository, settings: BrokerSettings) -> None:
    repository.damage()
    assert re.fullmatch(
        rf"Kafka \S+ cannot be fetched from {repository.url} \({ONE.name} is damaged: SHA-256 "
        r"\w+\.\.\. and not \w+\.\.\.\): check the network, or set MILLRACE_MAVEN_REPOSITORY to a mirror",
        _failure(settings),
    )
    assert repository.requests[ONE.path] == 3
    _left_nothing(settings)


def test_a_repository_without_a_jar_is_one_line(
    repository: MavenRepository, settings: BrokerSettings
) -> None:
    (repository.folder / ONE.path).unlink()
    assert re.fullmatch(
        rf"Kafka \S+ cannot be fetched from .* \({ONE.name}: HTTP status 404\): check .*", _failure(settings)
    )
    assert repository.requests[ONE.path] == 1
    _left_nothing(settings)


def test_unreachable_repository_is_one_line(tmp_path: Path) -> None:
    settings = BrokerSettings(cache_dir=tmp_path / "cache", maven_repository="http://127.0.0.1:1/maven2/")
    assert re.fullmatch(
        r"Kafka \S+ cannot be fetched from http://127\.0\.0\.1:1/maven2/ "
        r"\(\S+\.jar: Connection refused\): check the network, or set MILLRACE_MAVEN_REPOSITORY to a mirror",
        _failure(settings),
    )
    _left_nothing(settings)


def test_slow_repository_is_one_line(repository: MavenRepository, settings: BrokerSettings) -> None:
    repository.answers.clear()
    settings = settings.model_copy(update={"broker_download_timeout_s": 1.5})
    assert re.fullmatch(
        rf"Kafka \S+ did not arrive from {repository.url} within 1\.5 s \(no time is left for \S+\.jar\): "
        "check the network, or raise MILLRACE_BROKER_DOWNLOAD_TIMEOUT_S",
        _failure(settings),
    )
    _left_nothing(settings)


def test_a_full_disk_is_one_line(settings: BrokerSettings, tmp_path: Path) -> None:
    with small_disk(tmp_path / "cache", mib=4):
        assert re.fullmatch(
            r"Cannot keep Kafka's jars in .*/cache \(No space left on device\): "
            "set MILLRACE_CACHE_DIR to a folder that can be written and has 50 MB free",
            _failure(settings),
        )
        _left_nothing(settings)


def test_unwritable_cache_is_one_line(tmp_path: Path) -> None:
    in_the_way = tmp_path / "file"
    in_the_way.touch()
    assert re.fullmatch(
        r"Cannot keep Kafka's jars in .* \(Not a directory\): set MILLRACE_CACHE_DIR to a folder .*",
        _failure(BrokerSettings(cache_dir=in_the_way / "cache")),
    )


def test_the_mirror_of_mavens_settings_is_used(
    repository: MavenRepository, home: Path, tmp_path: Path
) -> None:
    (home / ".m2" / "settings.xml").write_text(SETTINGS.format(repository.url))
    assert kafka_jars(BrokerSettings(cache_dir=tmp_path / "cache")).is_dir()
    assert repository.requests == Counter(jar.path for jar in JARS)


needs_maven = pytest.mark.skipif(shutil.which("mvn") is None, reason="Maven is not installed")


@needs_maven
def test_both_failed_repositories_share_one_line(home: Path, tmp_path: Path) -> None:
    (home / ".m2" / "settings.xml").write_text(SETTINGS.format(f"file://{tmp_path}/nowhere"))
    settings = BrokerSettings(cache_dir=tmp_path / "cache")
    assert re.fullmatch(
        r"Kafka \S+ cannot be fetched from file://\S+/nowhere "
        r"\(\S+\.jar: No such file or directory; nor by Maven: .+\): check the network, or set .*",
        _failure(settings),
    )
    _left_nothing(settings)


@needs_maven
@pytest.mark.drill
def test_maven_fetches_what_cannot_be_downloaded(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Maven finds no mirror in its own home folder, and goes to Maven Central."""
    (home / ".m2" / "settings.xml").write_text(SETTINGS.format("http://127.0.0.1:1"))
    monkeypatch.setenv("MAVEN_OPTS", f"-Duser.home={tmp_path / 'of-maven'}")
    folder = kafka_jars(BrokerSettings(cache_dir=tmp_path / "cache"))
    assert {path.name for path in folder.iterdir()} == {jar.name for jar in JARS}


def _fetch(cache_dir: Path, repository: MavenRepository) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", FETCH],
        cwd=REPOSITORY,
        env={
            **os.environ,
            "MILLRACE_CACHE_DIR": str(cache_dir),
            "MILLRACE_MAVEN_REPOSITORY": repository.url,
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )


def _await_some_jars(cache_dir: Path, fetching: subprocess.Popen[str]) -> None:
    while len(list(cache_dir.glob(".staging-*/downloaded/*.jar"))) < 5:
        assert fetching.poll() is None
        time.sleep(0.01)


def _failure(settings: BrokerSettings) -> str:
    with pytest.raises(BrokerError) as failure:
        kafka_jars(settings)
    return str(failure.value)


def _left_nothing(settings: BrokerSettings) -> None:
    assert [path.name for path in settings.cache_dir.iterdir()] == ["lock"]

"""Connections from outside a generation reach the port where it meets."""

import socket
import stat
from datetime import timedelta
from pathlib import Path

import psutil
import pytest
from torch.distributed import PrefixStore, TCPStore

from executors.gang.folder import JobFolder
from executors.gang.meeting import Meeting
from executors.gang.messages import Membership

HOST, OTHER_ADDRESS = "127.0.0.1", "127.0.0.2"
GENERATION = 7


def membership(rank: int) -> Membership:
    return Membership(generation=GENERATION, rank=rank, world=2)


@pytest.fixture
def folder(tmp_path: Path) -> JobFolder:
    return JobFolder(tmp_path / "j")


@pytest.fixture
def leader(folder: JobFolder) -> Meeting:
    leader = Meeting.attend(folder, membership(0), HOST)
    assert leader is not None
    return leader


@pytest.mark.usefixtures("leader")
def test_the_meeting_listens_at_the_rank_host_alone(folder: JobFolder) -> None:
    address = folder.read_address(GENERATION)
    assert address is not None
    listening = psutil.Process().net_connections("inet")
    mine = {connection.laddr for connection in listening if connection.status == psutil.CONN_LISTEN}
    assert {(place.ip, place.port) for place in mine if place.port == address.port} == {(HOST, address.port)}
    socket.create_connection((HOST, address.port)).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((OTHER_ADDRESS, address.port))


@pytest.mark.usefixtures("leader")
def test_only_the_owner_reads_where_a_generation_meets(folder: JobFolder) -> None:
    (file,) = folder.path.iterdir()
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_data_of_unknown_process_block_no_meeting(leader: Meeting, folder: JobFolder) -> None:
    address = folder.read_address(GENERATION)
    assert address is not None
    follower = Meeting.attend(folder, membership(1), HOST)
    assert follower is not None
    plain = TCPStore(HOST, address.port, is_master=False, timeout=timedelta(seconds=5))
    for store in (plain, PrefixStore("group", plain), PrefixStore("0" * 64, plain)):
        for key in ("ready", "entered", "read"):
            store.add(key, 99)
        store.set("choice", "dissolved")
        store.set("outcome", "completed")

    assert not leader.all_ready
    for one in (leader, follower):
        one.announce()
        one.enter()
    assert leader.all_ready
    assert leader.all_entered
    assert follower.all_entered


def test_silent_connection_blocks_no_meeting(leader: Meeting, folder: JobFolder) -> None:
    address = folder.read_address(GENERATION)
    assert address is not None
    silent = [socket.create_connection((HOST, address.port)) for _ in range(20)]
    silent[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    follower = Meeting.attend(folder, membership(1), HOST)
    assert follower is not None
    follower.announce()
    leader.announce()
    assert leader.all_ready
    for connection in silent:
        connection.close()

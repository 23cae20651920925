"""A trace is known by its content, wherever it lies."""

import pytest

from bench.auction.trials import setting_name
from bench.workloads.arrivals import TraceArrivals
from bench.workloads.paper import PaperSetting
from infra.workloads.trace import TraceError


def traced(path) -> str:
    return setting_name(PaperSetting(trace=TraceArrivals(path, 7)))


def test_trace_is_identified_by_name_and_content(tmp_path):
    for folder, content in (("one", "a"), ("same", "a"), ("other", "b")):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "t.csv").write_text(content)
    one, same, other = (traced(tmp_path / folder / "t.csv") for folder in ("one", "same", "other"))
    assert one == same
    assert one != other
    assert one.startswith("trace=t.csv/7/")


def test_a_traces_bytes_are_read_once(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("a")
    setting = PaperSetting(trace=TraceArrivals(path, 7))
    name = setting_name(setting)
    path.unlink()
    assert setting_name(setting) == name
    with pytest.raises(TraceError, match=r"t.csv: No such file"):
        traced(path)

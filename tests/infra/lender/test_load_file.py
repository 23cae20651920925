"""Files of loads: read whole, or refused with the place of the fault."""

import pytest

from infra.errors import CommandError
from infra.lender.load_file import read_loads


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "loads.csv"
        path.write_text(text)
        return path

    return write


def test_times_and_loads_are_read_whatever_else_the_file_has(write):
    assert read_loads(write("load,model,time_s\n0.5,m,0\n1,m,300.5\n")) == [(0.0, 0.5), (300.5, 1.0)]


FAULTS = {
    "no columns": ("a,b\n1,2\n", "no column time_s"),
    "no load": ("time_s\n1\n", "no column load"),
    "nothing": ("time_s,load\n", "no loads"),
    "empty": ("", "no column time_s"),
    "a text": ("time_s,load\n0,0.5\n1,much\n", "loads.csv:3: load: 'much' is no number"),
    "NaN": ("time_s,load\n0,nan\n", "loads.csv:2: load: 'nan' is no number"),
    "percent": ("time_s,load\n0,50\n", "loads.csv:2: load: 50 is not from 0 to 1"),
    "a short row": ("time_s,load\n0\n", "loads.csv:2: load: None is no number"),
    "back in time": ("time_s,load\n0,0.1\n5,0.1\n5,0.2\n", "row 3: time_s 5 does not come after 5"),
}


@pytest.mark.parametrize(("text", "fault"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_told_with_its_place(write, text, fault):
    with pytest.raises(CommandError) as raised:
        read_loads(write(text))
    assert fault in str(raised.value)


def test_a_file_that_is_not_there_is_told(tmp_path):
    with pytest.raises(CommandError, match=r"none\.csv: No such file"):
        read_loads(tmp_path / "none.csv")


def test_a_file_that_is_no_text_is_told(tmp_path):
    path = tmp_path / "loads.csv"
    path.write_bytes(b"time_s,load\n\xff\xfe,1\n")
    with pytest.raises(CommandError, match="no CSV in UTF-8"):
        read_loads(path)

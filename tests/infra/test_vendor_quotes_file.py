"""Standing quotes as vendors write them."""

from pathlib import Path

import pytest

from infra.event_files import EntriesFileError, read_vendor_quotes
from schemas.auction.bids import VendorLeft, VendorQuoted

GOOD = """\
- cell: c
  vendor: annotators
  fixed_price: 0.5
  price_per_thousand_samples_micros: 7
  fixed_delay_s: 60
  delay_per_thousand_samples_s: 1.5
- {vendor: cleaners, leaves: true}
"""


def test_prices_in_units_or_micros_and_leaving_vendors(tmp_path: Path) -> None:
    path = tmp_path / "quotes.yaml"
    path.write_text(GOOD)
    assert read_vendor_quotes(str(path), "d") == [
        VendorQuoted(
            cell="c",
            vendor="annotators",
            fixed_price_micros=500_000,
            price_per_thousand_samples_micros=7,
            fixed_delay_s=60.0,
            delay_per_thousand_samples_s=1.5,
        ),
        VendorLeft(cell="d", vendor="cleaners"),
    ]


BAD = {
    "no quote": ("", None, "holds no quote"),
    "a word": ("hello\n", 1, "a quote is a mapping"),
    "a price in both ways": (
        GOOD.replace("fixed_price: 0.5", "fixed_price: 1\n  fixed_price_micros: 1"),
        3,
        "either",
    ),
    "a negative price": (GOOD.replace("0.5", "-1"), 3, "fixed_price: not an amount"),
    "a delay that is none": (
        GOOD.replace("1.5", ".nan"),
        6,
        "delay_per_thousand_samples_s: Input should be a finite number",
    ),
    "a missing price": (GOOD.replace("  fixed_price: 0.5\n", ""), 1, "fixed_price_micros: Field required"),
    "one that leaves and quotes": (
        GOOD.replace("leaves: true", "leaves: true, fixed_price: 1"),
        7,
        "Extra inputs",
    ),
    "one that does not leave": (GOOD.replace("leaves: true", "leaves: no"), 7, "leaves: set it to true"),
}


@pytest.mark.parametrize(("text", "line", "fault"), BAD.values(), ids=BAD.keys())
def test_fault_is_one_line_with_file_and_line(
    tmp_path: Path, text: str, line: int | None, fault: str
) -> None:
    path = tmp_path / "quotes.yaml"
    path.write_text(text)
    with pytest.raises(EntriesFileError) as error:
        read_vendor_quotes(str(path), "d")
    assert str(error.value).startswith(f"{path}:{line}: " if line else f"{path}: ")
    assert fault in str(error.value)
    assert "\n" not in str(error.value)

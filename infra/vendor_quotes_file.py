"""Standing quotes of labour vendors as people write them."""

from infra.entries_file import Entry, read_entries
from schemas.quotes import VendorLeft, VendorQuoted


def read_vendor_quotes(file: str, default_cell: str | None = None) -> list[VendorQuoted | VendorLeft]:
    """Read the quotes of a file, or of standard input for `-`.

    Beside the fields of `VendorQuoted`, an entry may give its prices in units of money, without `_micros`;
    one that says `leaves: true` takes the vendor's quote back. One without cell is for `default_cell`.

    Raises:
        EntriesFileError: the file cannot be read, is too large, or an entry is no quote.
    """
    return [_quote(entry, default_cell) for entry in read_entries(file, "quote")]


def _quote(entry: Entry, default_cell: str | None) -> VendorQuoted | VendorLeft:
    fields = entry.with_micros(entry.fields, "fixed_price", "price_per_thousand_samples")
    if default_cell is not None:
        fields.setdefault("cell", default_cell)
    if "leaves" not in fields:
        return entry.parse(VendorQuoted, fields)
    if fields.pop("leaves") is not True:
        raise entry.fault(("leaves",), "say true, or leave it out")
    return entry.parse(VendorLeft, fields)

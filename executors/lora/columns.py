"""Records whose fields have other names than in the forms of records."""

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b

from executors.lora.record_fields import as_object, listed, shown
from executors.lora.records import DatasetRecord, RecordForm
from schemas.lora import Columns


@dataclass(frozen=True)
class RenamedRecords:
    """Records of a form whose fields the job has named. Other fields are ignored.

    Attributes:
        form: form of the records once their fields have its names.
        columns: (field of the form, name in the file).
    """

    form: RecordForm
    columns: tuple[tuple[str, str], ...]

    @property
    def key(self) -> str:
        """See `RecordForm`."""
        names = "\0".join(name for pair in self.columns for name in pair).encode(errors="surrogatepass")
        return f"{self.form.key}-{blake2b(names, digest_size=8).hexdigest()}"

    def parse(self, fields: object) -> DatasetRecord:
        """See `RecordForm`. Only `input` may be missing."""
        given = as_object(fields, "{" + ", ".join(f'"{column}": ...' for _, column in self.columns) + "}")
        renamed: dict[str, object] = {}
        for name, column in self.columns:
            if column in given:
                renamed[name] = given[column]
            elif name != "input":
                raise ValueError(
                    f"{shown(column)}: is missing, and dataset.columns.{name} names it; the fields are: "
                    f"{listed(given)}"
                )
        try:
            return self.form.parse(renamed)
        except ValueError as error:
            raise ValueError(self._in_the_file(str(error))) from error

    def _in_the_file(self, fault: str) -> str:
        """Replace the field that a fault begins with by its name in the file."""
        for name, column in self.columns:
            if fault.startswith((f"{name}:", f"{name}[")):
                return f"{shown(column)}{fault[len(name) :]}"
        return fault


def with_columns(form: RecordForm, columns: Columns | None) -> RecordForm:
    """Return a form with the names of fields that a job gives; the form itself if it gives none."""
    if columns is None:
        return form
    named: Mapping[str, str] = columns.model_dump(exclude_none=True)
    return RenamedRecords(form, tuple(named.items()))

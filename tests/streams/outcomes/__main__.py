"""`make golden`: record what every policy decides anew, after a change of decisions that is meant."""

from tests.streams.outcomes.table import POLICIES, path, table

for name in POLICIES:
    path(name).write_text(table(name))

"""`make golden`: record the decisions of every policy again, after an intended change of decisions."""

from streams.installation import install_policies
from tests.streams.outcomes.gangs import GANG_POLICIES, gang_table
from tests.streams.outcomes.table import POLICIES, path, table

install_policies()
for name in POLICIES:
    path(name).write_text(table(name))
for name in GANG_POLICIES:
    path(name).write_text(gang_table(name))

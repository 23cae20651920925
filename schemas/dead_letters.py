"""The headers of a dead letter, beside those that the refused record came with."""

HEADER_PREFIX = "dlt_"
"""Of the names below; a refused record's own headers of such names are left out."""

TOPIC_HEADER = "dlt_topic"
PARTITION_HEADER = "dlt_partition"
OFFSET_HEADER = "dlt_offset"
"""Where the record stood."""
REASON_HEADER = "dlt_reason"
VALUE_BYTES_HEADER = "dlt_value_bytes"
"""Length of the value before it was cut."""
HEADER_COUNT_HEADER = "dlt_header_count"
"""Headers before some were left out."""

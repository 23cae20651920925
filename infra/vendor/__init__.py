"""The reference service of a labour vendor: prepares JSONL files that cells order."""

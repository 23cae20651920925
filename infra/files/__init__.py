"""Files that users write: jobs and quotes."""

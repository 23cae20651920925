"""The settings of the runner `elastic`."""

from executors.settings import JobSettings, ThrottledSettings


class ElasticSettings(JobSettings, ThrottledSettings):
    """Settings of the runner `elastic`, besides those of all jobs."""

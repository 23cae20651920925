"""The settings of the runner `elastic`: environment variables `MILLRACE_*`, besides those of its node."""

from executors.gang.settings import JobSettings


class ElasticSettings(JobSettings):
    """Settings of the runner: those of every runner whose ranks load the job's model."""

"""`python -m streams.worker`: a worker whose settings are environment variables `MILLRACE_*`."""

from streams.worker.worker import run_worker

if __name__ == "__main__":
    run_worker()

"""`python -P -m streams.worker`: a worker whose settings are environment variables `MILLRACE_*`."""

from schemas.service_base import require_extra_of

if __name__ == "__main__":
    require_extra_of("worker", "worker")
    from streams.installation import install_policies
    from streams.worker.worker import run_worker

    install_policies()
    run_worker()

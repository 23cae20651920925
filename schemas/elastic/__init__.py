"""The types of the elastic policy: data-parallel jobs whose number of workers may change while they run."""

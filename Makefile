# Two commands for a newcomer: `make demo` and `make test`. Both set everything up from nothing.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-all coverage postgres chromium check format lint types imports docs signatures new-failure bench integrations versions faults build package clean

$(VENV)/.ready: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet -c constraints.txt torch  # the pinned build first: unpinned torch brings CUDA
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[dev]'
	touch $@

demo: $(VENV)/.ready  ## train a model on real data, with curves and a report
	$(BIN)/trueloop train digits --run-dir runs/demo --fresh

postgres:  ## a database for the tests of tracking, which are skipped where there is none and none can be installed
	@ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1 || command -v postgres >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends postgresql; \
	} || echo "No PostgreSQL here: its tests are skipped."

chromium:  ## a browser for the tests of the lab, which are skipped where there is none and none can be installed
	@[ -x /usr/bin/chromium ] || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && \
		apt-get update -q && DEBIAN_FRONTEND=noninteractive apt-get install -q -y --no-install-recommends chromium; \
	} || echo "No Chromium here: the tests of the lab's page are skipped."

PYTEST := $(BIN)/python -m pytest --numprocesses logical --dist worksteal --durations 25

test: $(VENV)/.ready  ## the tests that finish in five minutes on two cores; every area is covered
	$(PYTEST) -m "not slow"

test-all: test postgres chromium  ## then all the others: seeds, browser, databases, frameworks, faults, torch.compile
	$(PYTEST) -m slow

coverage: $(VENV)/.ready postgres chromium  ## the tests again, counting the branches they take; fails where they are too few
	COVERAGE_FILE=$(CURDIR)/.coverage $(PYTEST) --cov --cov-report=
	$(BIN)/python tests/covered.py

check: $(VENV)/.ready format lint types imports test-all docs  ## everything a change must pass

format: $(VENV)/.ready
	$(BIN)/ruff format --check .

lint: $(VENV)/.ready
	$(BIN)/ruff check .

types: $(VENV)/.ready
	$(BIN)/pyright

imports: $(VENV)/.ready
	$(BIN)/lint-imports

docs: $(VENV)/.ready  ## the documentation as a site that needs no server: open site/index.html
	$(BIN)/mkdocs build --strict --quiet
	@echo "Open site/index.html"

signatures: $(VENV)/.ready  ## the measured curves of new or changed failures, which the site shows
	$(BIN)/python docs/making/signatures.py

new-failure: $(VENV)/.ready  ## the files of a new failure: make new-failure FAMILY=gradient NAME=never_cleared
	$(BIN)/python tools/new_failure.py $(FAMILY) $(NAME)

bench: $(VENV)/.ready  ## the measured claims, next to the peers
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	for script in $(filter-out %/page.py %/wild.py,$(wildcard benchmarks/[a-z]*.py)) benchmarks/page.py; do \
		$(BIN)/python $$script || exit 1; done

integrations: $(VENV)/.ready  ## programs of Lightning, the HF Trainer, Accelerate and Ignite under trueloop run, for real
	$(BIN)/python -m pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python tests/integrations.py

faults: $(VENV)/.ready  ## kills, damage, full disks: the whole fault campaign, about half an hour
	$(BIN)/python tests/faults/campaign.py

versions:  ## the tests of the sanitizer and of the loop with another torch, in an environment of its own: TORCH=2.15.0
	$(PYTHON) -m venv .venv-torch-$(TORCH)
	grep -vE '^(torch|sympy|networkx|fsspec|setuptools|torchmetrics)==' constraints.txt > .venv-torch-$(TORCH)/constraints.txt
	.venv-torch-$(TORCH)/bin/python -m pip install --quiet -c .venv-torch-$(TORCH)/constraints.txt torch==$(TORCH) -e '.[dev]'
	OMP_NUM_THREADS=1 .venv-torch-$(TORCH)/bin/python -m pytest -n auto --dist worksteal tests/failures tests/guilty tests/healthy \
		tests/tracing tests/training tests/data tests/verification tests/autograd tests/lab/teaching \
		tests/distributed

build: $(VENV)/.ready
	$(BIN)/python -m build --outdir dist .

package: $(VENV)/.ready  ## wheel and sdist, installed in empty environments and used there; needs the registry
	$(BIN)/python tests/package.py

clean:
	rm -rf $(VENV) dist site runs

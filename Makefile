# make sweep | test | bench set up everything they need in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --benchmark-disable
SWEEPS := multiprocess or root or browser or slurm or gpu
PIP := $(BIN)/python -m pip install --disable-pip-version-check -q -c constraints.txt

.PHONY: sweep test bench check clean help
.DEFAULT_GOAL := help

help:  ## what there is
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

sweep: .venv/.runtime  ## run the default experiment and report on it
	$(BIN)/python -m ddpbench sweep quick

test: .venv/.dev  ## run all tests and checks
	$(MAKE) check
	@# Sweeps mostly wait for their ranks, and only one may claim the cores: all other tests run beside, and are told of
	@# when both are done. Emulated links, which need root, are held to their rates: they come last, alone.
	@told=$$(mktemp); \
	$(PYTEST) -q -p no:cacheprovider -m 'not ($(SWEEPS))' >$$told 2>&1 & beside=$$!; \
	trap 'kill $$beside 2>/dev/null; rm -f $$told' EXIT; trap 'exit 130' INT TERM; \
	$(PYTEST) --durations=15 -m '($(SWEEPS)) and not root'; sweeps=$$?; \
	if [ $$sweeps = 2 ]; then exit 130; fi; \
	wait $$beside; rest=$$?; \
	echo; echo "Tests without sweeps:"; cat $$told; \
	$(PYTEST) --durations=5 -m root; links=$$?; \
	exit $$((sweeps || rest || links))

check: .venv/.dev  ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p ddpbench
	$(BIN)/lint-imports

bench: .venv/.dev  ## measure the promised ratios; exit 1 outside their bounds
	$(BIN)/python -m pytest tests/benchmarks --ratios -p no:cacheprovider -q -s

clean:  ## remove the environment
	rm -rf .venv

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "this Python cannot make environments; on Debian: apt-get install python3-venv"; exit 1; }

# torch first and alone: another package's range must never choose its build.
.venv/.runtime: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	@touch $@

.venv/.dev: .venv/.runtime
	$(PIP) -e '.[dev]'
	@touch $@

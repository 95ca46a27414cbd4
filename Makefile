# make sweep | test | bench set up everything they need in .venv; nothing else on the machine is touched.
PYTHON ?= python3
BIN := .venv/bin
PYTEST := $(BIN)/python -m pytest --benchmark-disable
TESTS_AT_ONCE := 3
# A recipe line that itself names $(MAKE) would run under `make -n`.
CHECK = $(MAKE) check
FRAMEWORK_TESTS := framework
FRAMEWORK_FILES := tests
BENCH := tests/benchmarks
# Files with tests marked so (tests/conftest.py holds marks to it): each process would import all others for nothing.
LINKS_IN = $(shell grep -rl 'mark\.links' tests --include='*.py')
ALONE_IN = $(shell grep -rl 'mark\.alone' tests --include='*.py')
PICTURED = $(shell sed -n 's/^!\[.*](\(\.\.\/\)*\(reports\/[^/]*\)\/.*png)$$/\2/p' README.md docs/*.md | sort -u)
SHARED = $(if $(SHARE),--share $(SHARE))
BY_FILE := --dist loadfile --no-loadscope-reorder
# Byte code of all that is installed takes pip most of its time: what is imported has it from its first import on.
PIP := $(BIN)/python -m pip install --no-compile --disable-pip-version-check -q -c constraints.txt
IMPORTED := ddpbench.report.page, matplotlib.backends.backend_agg, matplotlib.backends.backend_svg, pyroute2, torch.distributed.checkpoint, torch.distributed.run
IMPORT := $(BIN)/python -c 'import $(IMPORTED); from ddpbench.worker.server import preload; preload()'
IMPORTED_OF_FRAMEWORKS := accelerate deepspeed lightning ray.train.torch tensorflow transformers.trainer

.PHONY: sweep test thorough frameworks bench campaign soak check docs reports pictures build clean help
.DEFAULT_GOAL := help

help:  ## what there is
	@sed -n 's/^\([a-z]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 8

sweep: .venv/.runtime  ## run the default experiment and report on it
	$(BIN)/python -m ddpbench sweep quick

# Each of the many processes would compile this package anew, and what pip left uncompiled.
export PYTHONDONTWRITEBYTECODE =

test: .venv/.dev  ## run the checks, and all tests but the long ones and frameworks'
	@# Sweeps mostly wait for their ranks: a few run beside each other, and beside the checks. What is held to times comes
	@# last, alone.
	@$(CHECK) & check=$$!; trap 'kill $$check 2> /dev/null' EXIT; \
	$(PYTEST) -q -n $(TESTS_AT_ONCE) $(BY_FILE) --durations=15 -m 'not links and not alone and not framework and not thorough and not gpu'; most=$$?; \
	if [ $$most = 2 ]; then exit 130; fi; \
	wait $$check; checked=$$?; \
	$(PYTEST) -q -n 2 $(BY_FILE) --durations=5 -m 'links and not thorough' $(LINKS_IN); links=$$?; \
	if [ $$links = 2 ]; then exit 130; fi; \
	$(PYTEST) -q -m 'alone and not framework' $(ALONE_IN); alone=$$?; \
	$(PYTEST) -q -m gpu tests/gpu; gpu=$$?; \
	exit $$((checked || most || links || alone || gpu))

thorough: .venv/.dev  ## run the long tests that `make test` has no time for; SHARE=0/8: every eighth, from the first
	@$(PYTEST) -q -n $(TESTS_AT_ONCE) $(BY_FILE) $(SHARED) --durations=10 -m 'thorough and not framework and not links'; most=$$?; \
	if [ $$most = 2 ]; then exit 130; fi; \
	$(PYTEST) -q -n 2 $(BY_FILE) $(SHARED) --durations=5 -m 'thorough and links' $(LINKS_IN); links=$$?; \
	exit $$((most || (links && links != 5)))

frameworks: .venv-frameworks/.all  ## run the tests of the frameworks' strategies, in an environment of their own
	.venv-frameworks/bin/python -m pytest --benchmark-disable -q -n 2 $(BY_FILE) --durations=10 -m '$(FRAMEWORK_TESTS)' $(FRAMEWORK_FILES)

check: .venv/.dev  ## lint, types, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --strict -p ddpbench
	$(BIN)/lint-imports

bench: .venv/.dev  ## measure the promised ratios, in hours; exit 1 outside their bounds; BENCH=FILES measures some
	$(BIN)/python -m pytest $(BENCH) --ratios -p no:cacheprovider -q -s

campaign: .venv/.dev  ## try 1,000 bad inputs and 300 faults; exit 1 where one misbehaves
	$(BIN)/python -m tests.campaign

soak: .venv/.dev  ## run two long sweeps; exit 1 where memory or open files grow
	$(BIN)/python -m tests.campaign.soak

docs: .venv/.dev  ## write the generated pages of docs/
	$(BIN)/python -c 'import pathlib; from ddpbench.analysis.table.columns import page; pathlib.Path("docs/columns.md").write_text(page(), "utf-8")'
	$(BIN)/python -c 'import pathlib; from ddpbench.cli.commands_page import page; pathlib.Path("docs/commands.md").write_text(page(), "utf-8")'
	$(BIN)/python -c 'import pathlib; from ddpbench.report.method import glossary; pathlib.Path("docs/glossary.md").write_text(glossary(), "utf-8")'
	$(BIN)/python -c 'import pathlib; from ddpbench.launch.settings_page import page; pathlib.Path("docs/settings.md").write_text(page(), "utf-8")'

reports: .venv/.dev  ## write the pages of the kept runs, whose values have changed
	@for run in reports/*/records.tar.xz; do $(BIN)/python -m ddpbench report "$${run%/*}" > /dev/null || exit 1; done

pictures: .venv/.dev  ## make the pictures of README and docs again, from their runs; needs chromium
	@for run in $(PICTURED); do $(BIN)/python -m ddpbench report "$$run" > /dev/null || exit 1; done
	$(BIN)/python -m tests.pictures

build: .venv/.dev  ## build an sdist, and from it a wheel, into dist/
	$(BIN)/python -m build --no-isolation

clean:  ## remove the environments
	rm -rf .venv .venv-frameworks

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "Python 3.11 or newer is needed; name it with: make PYTHON=python3.12 ..."; exit 1; }
	@$(PYTHON) -m venv .venv || \
		{ rm -rf .venv; echo "this Python cannot make environments; on Debian: apt-get install python3-venv"; exit 1; }

# torch first and alone: another package's range must never choose its build.
.venv/.packages: .venv/bin/python pyproject.toml constraints.txt
	$(PIP) torch
	$(PIP) -e .
	@touch $@

.venv/.runtime: .venv/.packages
	$(IMPORT)
	@touch $@

# What is there already is imported while the rest is installed.
.venv/.dev: .venv/.packages
	@$(IMPORT) & imported=$$!; $(PIP) -e '.[dev]' & installed=$$!; \
	trap 'kill $$imported $$installed 2> /dev/null; exit 130' INT TERM HUP; \
	wait $$installed && wait $$imported
	@touch .venv/.runtime $@

.venv-frameworks/.all: pyproject.toml constraints.txt
	@test -x .venv-frameworks/bin/python || $(PYTHON) -m venv .venv-frameworks
	$(subst .venv,.venv-frameworks,$(PIP)) torch
	$(subst .venv,.venv-frameworks,$(PIP)) -e '.[dev,frameworks]'
	@# What tests have many processes import at once; one that does not import here is told of by its tests.
	@for name in $(IMPORTED_OF_FRAMEWORKS); do \
		timeout 300 .venv-frameworks/bin/python -c "import $$name" > /dev/null 2>&1; done; true
	@touch $@

# Every target sets up what it needs by itself: it takes Python >= 3.11 and a C/C++ compiler with
# cmake (for llama.cpp). The environments lie in .venv*, and are quick to reuse.

PYTHON ?= python3
# Most tests wait for a clock or a socket more than for a core. A file's tests stay together: they
# share models.
WORKERS ?= $(shell $(PYTHON) -c 'import os; print(min(4, os.cpu_count() + 1))')
PYTEST_FLAGS ?= -n $(WORKERS) --dist loadfile --durations 20
SHELL := /bin/bash

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
LOWEST := .venv-lowest
LOWEST_STAMP := $(LOWEST)/.installed
LOWEST_PINS := grpcio==1.76.0 grpcio-health-checking==1.76.0 grpcio-reflection==1.76.0 \
	protobuf==6.31.1

.PHONY: help setup demo test test-lowest lowest check proto bench format clean FORCE

help:
	@echo "make demo    run edge and cloud on this machine over an emulated link; PROFILE=... is the link"
	@echo "make test    all tests, then those of the wire against the lowest grpc and protobuf"
	@echo "make check   lint, formatting, types, import rules, generated code, links in the docs, deploy/"
	@echo "make bench   measure the real system into docs/benchmarks.md; QUICK=1 in minutes, elsewhere"
	@echo "make proto   generate the modules of specwire.v1 from verifier.proto"
	@echo "make format  apply formatting and the fixes that are safe"
	@echo "make lowest  the environment with the lowest grpc and protobuf"
	@echo "make clean   remove environments and caches"

setup: $(STAMP)

# The stamp holds the checksum of what the environment was made from, so that a fresh checkout of
# the same files reinstalls nothing and a changed file is noticed whatever its time.
$(STAMP): FORCE
	@wanted="$$(cat pyproject.toml constraints.txt | cksum) $(CURDIR)"; \
	if [ "$$(cat $@ 2>/dev/null)" != "$$wanted" ] || ! $(BIN)/python -c '' 2>/dev/null; then \
		set -e; \
		$(BIN)/python -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV); \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check \
			-c constraints.txt -e '.[edge,cloud,otel,netsim,parquet,demo,dev]'; \
		echo "$$wanted" > $@; \
	fi

FORCE:

# Only the lowest grpc and protobuf are installed here; all else is found in .venv, whose folder
# comes after, so that these versions win.
$(LOWEST_STAMP): $(STAMP) Makefile
	@set -e; \
	$(LOWEST)/bin/python -c '' 2>/dev/null || $(BIN)/python -m venv --clear $(LOWEST); \
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check $(LOWEST_PINS); \
	site='import sysconfig; print(sysconfig.get_paths()["purelib"])'; \
	main="$$($(BIN)/python -c "$$site")"; \
	own="$$($(LOWEST)/bin/python -c "$$site")"; \
	echo "import site; site.addsitedir('$$main')" > "$$own/zz_main_environment.pth"; \
	$(LOWEST)/bin/python -c "import google.protobuf, grpc, specwire; \
	got = f'grpcio=={grpc.__version__} protobuf=={google.protobuf.__version__}'; \
	assert got == 'grpcio==1.76.0 protobuf==6.31.1', got"; \
	touch $@

lowest: $(LOWEST_STAMP)

demo: $(STAMP)
	$(BIN)/netsim demo $(if $(PROFILE),--profile $(PROFILE))

test: $(STAMP)
	$(BIN)/python -m pytest -m 'not alone' $(PYTEST_FLAGS)
	$(BIN)/python -m pytest -m alone
	@$(MAKE) --no-print-directory test-lowest

test-lowest: $(LOWEST_STAMP)
	$(LOWEST)/bin/python -m pytest -m wire $(PYTEST_FLAGS)

check: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/gen_proto.py --check
	$(BIN)/python scripts/check_links.py
	$(BIN)/python -m scripts.check_deploy

proto: $(STAMP)
	$(BIN)/python scripts/gen_proto.py

bench: $(STAMP)
	$(BIN)/python -m benchmarks $(if $(QUICK),--quick)

format: $(STAMP)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(LOWEST) .venv-proto .mypy_cache .ruff_cache .pytest_cache .hypothesis \
		.import_linter_cache build dist *.egg-info

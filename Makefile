# Two commands do everything: `make demo` and `make test`. Both keep their environment in .venv and are quick again.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := smollm2-135m minilm-l6 gemma3-270m mpnet-base
export OMP_NUM_THREADS ?= 2

.PHONY: demo test lint fetch browser bench clean

demo: $(VENV)/.run
	$(BIN)/headscape demo

test: $(VENV)/.dev lint fetch browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

fetch: $(VENV)/.dev
	$(BIN)/headscape models $(addprefix --get ,$(MODELS))

# the report is tested in a real browser: Debian's Chromium, unless HEADSCAPE_CHROMIUM names another
browser:
	@test -n "$$HEADSCAPE_CHROMIUM" || command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
	  { apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium fonts-dejavu-core; }

bench: $(VENV)/.dev
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[models,report]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[models,report,scale,dev]'
	touch $@

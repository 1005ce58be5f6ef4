# Two commands do everything: `make demo` and `make test`. Both keep their environment in .venv and are quick again.
# While working: `make check`, the quick half of `make test`. Now and then: `make mutants`, to test the tests.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
MODELS := smollm2-135m minilm-l6 gemma3-270m mpnet-base
export OMP_NUM_THREADS ?= 2

TEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadgroup
COVERED := 87 # percent of the lines that the quick tests must reach: just below what they do (87.8)

.PHONY: demo test check docs lint fetch browser mutants faults slow bench clean

demo: $(VENV)/.run
	$(BIN)/headscape demo

# coverage is that of the quick tests: it makes them take longer by half, which all of them together could not afford
test: $(VENV)/.dev lint fetch browser
	$(TEST) -m "not slow" --cov=headscape --cov-report=term:skip-covered --cov-fail-under=$(COVERED)
	$(TEST) -m slow

check: $(VENV)/.dev lint
	$(TEST) -m "not slow"

# the site in docs/_build; the tutorials are run once and again when they change. Warnings and broken links are errors,
# and so is a page that would fetch a script or a style
docs: $(VENV)/.docs fetch
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build
	! grep -rlE '(src|href)="(https?:)?//[^"]+[.](js|css|woff2?)"' docs/_build --include=*.html
	@echo site: docs/_build/index.html

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

# for example: make mutants ARGS="-n 20 --only geometry --seed 3"
mutants: $(VENV)/.dev fetch
	nice $(BIN)/python scripts/mutants.py $(ARGS)

# every command killed at every rename and at random, and two at a time: an hour or two; counts are printed at the end
faults: $(VENV)/.dev
	HEADSCAPE_FAULTS=1 OMP_NUM_THREADS=1 $(BIN)/python -m pytest tests/faults

# which tests take more than a second of the processor: writes tests/slow.txt
slow: $(VENV)/.dev fetch browser
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest --write-slow

bench: $(VENV)/.dev
	for file in benchmarks/[a-z]*.py; do $(BIN)/python $$file || exit 1; done

clean:
	rm -rf $(VENV)

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[models,report]'
	touch $@

$(VENV)/.docs: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	touch $@

$(VENV)/.dev: $(VENV)/.run
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[models,report,scale,dev]'
	touch $@

# Every target works from a clean clone: it sets up what it needs into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo test check bench unit integration crash soak test-pyflink record-pyflink clean format

setup: $(VENV)/.setup-done

$(VENV)/.setup-done: pyproject.toml scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh
	@touch $@

demo: setup
	@$(BIN)/python examples/demo/demo.py

check: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/architecture

unit: setup
	$(BIN)/python -m pytest -m "not slow and not pyflink" tests/unit tests/architecture tests/compat

integration: setup
	$(BIN)/python -m pytest tests/integration

crash: setup
	$(BIN)/python -m pytest tests/crash

test: setup
	$(BIN)/python -m pytest -m "not slow and not pyflink" tests

soak: setup
	$(BIN)/python -m pytest -m slow tests

test-pyflink: setup
	bash scripts/pyflink_venv.sh
	$(BIN)/python -m pytest -m pyflink tests/compat

# Takes over what PyFlink gives now. Look at the difference before you commit it.
record-pyflink: setup
	bash scripts/pyflink_venv.sh
	-TIDEGATE_RECORD_PYFLINK=1 $(BIN)/python -m pytest -m pyflink -k test_pyflink tests/compat
	git diff --stat tests/compat/differential/recorded.json

bench: setup
	bash bench/setup_peers.sh
	$(BIN)/python bench/run.py

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist bench/build .pytest_cache .mypy_cache .ruff_cache

# Every target works from a clean clone: it sets up what it needs into .venv.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: setup demo demo-kafka demo-snapshot test check check-programs lint bench unit integration kafka servers web-test crash soak nexmark mutants pairwise s3 hdfs test-pythons test-pyflink record-pyflink random-pyflink wheel wheel-test lock clean format docs test-sparks release site clusters

setup: $(VENV)/.setup-done

$(VENV)/.setup-done: pyproject.toml uv.lock scripts/setup.sh
	@PYTHON="$(PYTHON)" VENV="$(VENV)" bash scripts/setup.sh
	@touch $@

demo: setup
	@$(BIN)/python examples/demo/demo.py

# The same with Kafka: a real broker, fetched the first time; worker, driver and broker are killed.
demo-kafka: setup
	@$(BIN)/python examples/kafka/demo.py

# Why barriers: three operators, one snapshot, one crash, as a picture.
demo-snapshot: setup
	@$(BIN)/python examples/snapshot/demo.py

# Before every commit. CI runs it and then the tests that are not in it.
check: lint unit

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	MYPY=$(BIN)/mypy bash scripts/check_types.sh

# In two processes: many of them wait for processes that they start.
unit: setup
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "not slow and not pyflink" tests/unit tests/architecture

# The programs of docs/ and examples/ in strict mode of three type checkers: what a user's checker says of them.
check-programs: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python "pyright[nodejs]==1.1.414" "pyrefly==1.4.1"
	$(BIN)/python -m scripts.check_programs

integration: setup
	$(BIN)/python -m pytest tests/integration

# On a real broker, which the tests start; its jars are fetched the first time.
kafka: setup
	$(BIN)/python -m pytest tests/kafka

# On real database servers, which the tests install (Debian's packages, as root) and start.
servers: setup
	$(BIN)/python -m pytest tests/servers

# The page in Chromium (Debian's package, installed by the tests as root): with made jobs, and slow ones on Spark; the vendored
# scripts against npm.
web-test: setup
	$(BIN)/python -m pytest tests/web tests/incidents

crash: setup
	$(BIN)/python -m pytest tests/crash

# On a real YARN and HDFS, Hadoop's mini clusters: some jars come from Maven Central the first time (65 MB), the others from pyspark.
# As root: tests give commands as from another host.
clusters: setup
	$(BIN)/python -m pytest tests/clusters

# All of them; or some: make test TESTS="tests/crash tests/compat".
test: setup $(if $(TESTS),,unit)
	$(BIN)/python -m pytest -m "not slow and not pyflink" $(or $(TESTS),tests --ignore tests/unit --ignore tests/architecture)

soak: setup
	$(BIN)/python -m pytest -m slow tests

# Checkpoint storage on an S3 server, which the test starts: moto and s3fs are installed for it, beside what is locked.
s3: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python "moto[server]>=5.1" "s3fs>=2025.3"
	$(BIN)/python -m pytest -m slow tests/servers/test_s3_storage.py

# The same on HDFS, Hadoop's mini cluster: one jar comes from Maven Central the first time (56 MB), the others from pyspark.
hdfs: setup
	$(BIN)/uv pip install --quiet --python $(BIN)/python "hdfs-native>=0.14"
	$(BIN)/python -m pytest -m slow tests/servers/test_hdfs_storage.py

# Mutants of the protocol, each run against the simulated fault tests: all must be caught. Or one: make mutants MUTANT="ignore the lease".
mutants: setup
	$(BIN)/python -m tests.mutants.mutant_run $(if $(MUTANT),"$(MUTANT)")

# A failure and a restart on Spark for every pair of mode, backend, kind of checkpoint, changelog and storage.
pairwise: setup
	$(BIN)/python -m pytest tests/integration/test_spark_pairwise.py

# The unit tests with every Python we support: those on the PATH, the others from Maven Central (scripts/test_pythons.py).
test-pythons: setup
	$(BIN)/python scripts/test_pythons.py

# A smoke test on every tested version of Spark, each in an environment of its own (scripts/test_sparks.py).
test-sparks: setup
	$(BIN)/python scripts/test_sparks.py

wheel: setup
	rm -rf dist build/lib build/bdist*
	$(BIN)/python -m build --wheel --installer uv

# The wheel in an empty environment: the first program of the README, and the commands of docs/install.md, with the time of each.
wheel-test: setup
	$(BIN)/python -m pytest -m slow tests/integration/test_wheel.py

# The wheel of this commit, the same bytes for everybody, with a bill of materials and checksums (docs/releases.md).
release: setup
	rm -rf dist
	$(BIN)/python scripts/release.py

# New pins for what pyproject.toml asks; what is pinned stays unless you say UPGRADE=--upgrade.
lock: setup
	$(BIN)/uv lock $(UPGRADE)

test-pyflink: setup
	bash scripts/pyflink_venv.sh
	$(BIN)/python -m pytest -m pyflink tests/compat

# Takes over what PyFlink gives now. Look at the difference before you commit it.
record-pyflink: setup
	bash scripts/pyflink_venv.sh
	-TIDEGATE_RECORD_PYFLINK=1 $(BIN)/python -m pytest -m pyflink -k test_pyflink tests/compat
	git diff --stat tests/compat

# Random programs on real PyFlink against the model that the tests compare Tidegate with: make random-pyflink FIRST=0 LAST=499.
FIRST ?= 0
LAST ?= 499
random-pyflink: setup
	bash scripts/pyflink_venv.sh
	venv="$${TIDEGATE_PYFLINK_VENV:-$(CURDIR)/.venv-pyflink}"; DIFFERENTIAL_API=pyflink PATH="$$venv/bin:$$PATH" \
		PYTHONPATH="$(CURDIR)" "$$venv/bin/python" -m tests.compat.random_programs.run $(FIRST) $(LAST)

bench: setup
	bash bench/setup_peers.sh
	$(BIN)/python bench/run.py

# The 22 queries of Nexmark: make nexmark PEERS=--java-only NEXMARK="--query q5". Without PEERS, PyFlink is set up too.
nexmark: setup
	bash bench/setup_peers.sh $(PEERS)
	$(BIN)/python bench/nexmark/run.py $(NEXMARK)

# The pages that are made from code; tests say when one is not current.
docs: setup
	for page in config_docs features_docs pyflink_names; do $(BIN)/python scripts/gen_$$page.py; done
	$(BIN)/python scripts/copy_programs.py
	$(BIN)/python scripts/copy_figures.py
	$(BIN)/python scripts/draw_pictures.py

# All pages and the API reference, with a search, in a directory of this version: build/site/<version>. Other versions there stay.
# Read it with: .venv/bin/python -m http.server -d build/site. Or elsewhere: make site SITE=/srv/tidegate.
SITE ?= build/site
site: setup
	$(BIN)/python -m scripts.build_site --site "$(SITE)"

format: setup
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

clean:
	rm -rf $(VENV) build dist bench/build .pytest_cache .mypy_cache .ruff_cache

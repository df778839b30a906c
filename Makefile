# Plimsoll. Everything that is built or downloaded lives under one folder outside the work tree: $(PLIMSOLL_CACHE).
SHELL := /bin/bash
.DEFAULT_GOAL := help
ifeq ($(HOME),)
export HOME := $(shell getent passwd "$$(id -u)" | cut -d: -f6)
endif
# After what is there: `su` and `sudo` may leave out the folders of dpkg's helpers and of a Go from go.dev.
export PATH := $(PATH):/usr/local/go/bin:/usr/local/sbin:/usr/sbin:/sbin
PLIMSOLL_CACHE ?= $(HOME)/.cache/plimsoll
ifneq ($(words $(PLIMSOLL_CACHE)),1)
$(error PLIMSOLL_CACHE="$(PLIMSOLL_CACHE)": give one path without spaces)
endif
override PLIMSOLL_CACHE := $(abspath $(patsubst ~/%,$(HOME)/%,$(PLIMSOLL_CACHE)))
export PLIMSOLL_CACHE
export PYTHONPATH := operator:.
export PYTHONDONTWRITEBYTECODE := 1
PYTHON ?= python3
LOCK := requirements/dev.txt
VENV := $(PLIMSOLL_CACHE)/venv-$(shell sha256sum $(LOCK) | cut -c1-12)
PY := $(VENV)/bin/python
NAME ?= demo
PYTEST_ARGS ?=

.PHONY: help host demo test behaviour chart-cluster unit check format setup prerequisites manifests chart-check docs reference up down status shell images lock checkov release-check release-artifacts measure bench bench-sizer bench-accuracy calibrate fuzz clean-cache metrics-page dashboard dashboard-picture scale-picture

help: ## what can be done here
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.done ## the Python environment, from the hash-locked requirements
$(VENV)/.done: $(LOCK)
	@$(PYTHON) -I tools/setup_venv.py "$(VENV)" $(LOCK)

host:
	@$(PYTHON) -I tools/check_host.py

prerequisites: host setup ## Debian packages, the Kubernetes binary, the container runtime (all cached)
	@$(PY) -m tests.cluster_kit.prerequisites
	@$(PY) -m tests.cluster_kit prepare

demo: prerequisites ## boot a real cluster, install the operator, size and serve a real model (KEEP=1 leaves it up)
	@$(PY) -m tests.demo

test: prerequisites check ## every suite: lint, types, unit, contract, cluster
	@$(PY) -m tests.cluster_kit.images --quiet
	@$(PY) -m tests.cluster_kit.gotools --quiet
	@-$(PY) -m tests.cluster.chart.first
	$(PY) -m pytest -n 2 $(PYTEST_ARGS)

chart-cluster: prerequisites ## the chart on a real cluster by Helm 4 and Helm 3: install, upgrade, rollback, uninstall (a part is in make test)
	@$(PY) -m tests.cluster_kit.images --quiet
	@$(PY) -m tests.cluster_kit.gotools --quiet helm4 helm3
	@$(PY) -m tests.cluster.chart.first
	PLIMSOLL_CHART_ALL=1 $(PY) -m pytest tests/cluster/chart $(PYTEST_ARGS)

behaviour: prerequisites ## the behaviour table on the real cluster: run its tests, rewrite docs/behaviour.md
	@$(PY) -m tests.cluster_kit.images --quiet
	@rm -rf "$(PLIMSOLL_CACHE)/behaviour"
	PLIMSOLL_BEHAVIOUR_OUT="$(PLIMSOLL_CACHE)/behaviour" $(PY) -m pytest tests/cluster/behaviour $(PYTEST_ARGS)
	@$(PY) -m tests.cluster.behaviour.table "$(PLIMSOLL_CACHE)/behaviour" docs/behaviour.md

unit: setup ## only what needs no cluster
	$(PY) -m pytest tests/unit $(PYTEST_ARGS)

check: setup ## lint, format, types, import contracts
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	@# A fresh clone finds the cache warm; two clones never write it at once.
	MYPY_CACHE_DIR="$(PLIMSOLL_CACHE)/mypy" $(if $(shell command -v flock),flock "$(PLIMSOLL_CACHE)/mypy.lock") $(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

format: setup ## let ruff rewrite the sources
	$(VENV)/bin/ruff check --fix .
	$(VENV)/bin/ruff format .

manifests: setup ## render manifests/{crd,operator,install}.yaml and the chart's README from charts/plimsoll
	@$(PY) -m tests.render_manifests
	@$(PY) tools/chart_readme.py

docs: setup ## build the documentation site; a broken link or anchor is an error
	NO_MKDOCS_2_WARNING=1 $(VENV)/bin/mkdocs build --strict --site-dir "$(PLIMSOLL_CACHE)/docs"
	@echo "open $(PLIMSOLL_CACHE)/docs with any web server: python3 -m http.server -d $(PLIMSOLL_CACHE)/docs"

metrics-page: setup ## write docs/metrics.md anew
	@$(PY) -m tools.metrics_page
dashboard: setup ## write the chart's dashboard anew
	@$(PY) -m tools.dashboard
dashboard-picture: prerequisites ## docs/img/dashboard.svg from a real Prometheus on the real cluster
	@$(PY) -m tests.cluster_kit.images --quiet
	@$(PY) -m tests.cluster_kit.gotools --quiet promtool prometheus
	PLIMSOLL_DASHBOARD_OUT=docs/img/dashboard.svg $(PY) -m pytest tests/cluster/test_dashboard.py $(PYTEST_ARGS)

scale-picture: prerequisites ## docs/img/scale-from-zero.svg from a run with the real Karpenter
	@$(PY) -m tests.cluster_kit.gotools --quiet kwok karpenter
	PLIMSOLL_SCALE_OUT=docs/img/scale-from-zero.json $(PY) -m pytest tests/scale/test_nodes.py -k from_zero_to_serving $(PYTEST_ARGS)
	@$(PY) -m tests.scale.picture docs/img/scale-from-zero.json docs/img/scale-from-zero.svg

reference: setup ## write the generated pages of docs/reference anew
	@$(PY) -m tools.reference

chart-check: prerequisites ## the Helm chart: lint, values, rendering, kubeconform and releases on a real API server
	$(PY) -m pytest tests/chart tests/contract/test_chart.py $(PYTEST_ARGS)

up: prerequisites ## start the local cluster NAME
	@$(PY) -m tests.cluster_kit up --name $(NAME)
down: setup ## stop the local cluster NAME
	@$(PY) -m tests.cluster_kit down --name $(NAME)
status: setup ## what runs in the local cluster NAME
	@$(PY) -m tests.cluster_kit status --name $(NAME)
shell: setup ## a shell with kubectl inside the local cluster NAME
	@$(PY) -m tests.cluster_kit shell --name $(NAME)

images: prerequisites ## build the operator, sizer and demo engine images
	@$(PY) -m tests.cluster_kit.images

measure: prerequisites ## print times, memory and image sizes of one server's life as JSON
	@$(PY) -m bench.lifecycle

bench: prerequisites ## the operator beside a Go operator and stock kopf: every suite, tables in docs/performance.md (BENCH_ARGS)
	@$(PY) -m bench.operator all $(BENCH_ARGS)

bench-sizer: setup ## the time of whole processes of fit, and the sizer's own time and memory, as JSON
	@$(PY) -m bench.start
	@$(PY) -m bench.sizer

calibrate: setup ## rebuild the constants of vLLM's reserve from tests/data, with the errors of cross-validation
	@$(PY) -m bench.calibrate

fuzz: setup ## random and mutated files for every reader (FUZZ_SECONDS a target, 60 by default)
	@$(PY) -m tests.fuzz

bench-accuracy: setup ## how exact the model readers and the pools are, on the facts in tests/data (OUTPUT=json)
	@$(PY) -m bench.accuracy -o $(or $(OUTPUT),text)

CHECKOV_LOCK := requirements/checkov.txt
CHECKOV = $(PLIMSOLL_CACHE)/checkov-$(shell sha256sum $(CHECKOV_LOCK) | cut -c1-12)
$(CHECKOV)/.done: $(CHECKOV_LOCK)
	@$(PYTHON) -I tools/setup_venv.py "$(CHECKOV)" $(CHECKOV_LOCK)

checkov: setup $(CHECKOV)/.done ## scan manifests, the chart with everything on, the Dockerfile; waivers in .checkov.yaml
	@$(PY) -m tests.release.checkov "$(CHECKOV)/bin/checkov"

release-check: prerequisites $(CHECKOV)/.done ## can this tree be released: every step with its time (FINAL=1 for the release's own commit)
	@$(PY) -m tests.release.check --checkov "$(CHECKOV)/bin/checkov" $(if $(FINAL),--final) $(RELEASE_ARGS)

release-artifacts: prerequisites ## chart, manifests, wheel, images, bills of materials and SHA256SUMS, in dist/
	@$(PY) -m tests.release.artifacts

lock: setup ## regenerate the hash-locked requirements from pyproject.toml
	@$(PY) tools/lock.py

clean-cache: ## remove everything that was downloaded or built
	@! ls -d "$(PLIMSOLL_CACHE)"/clusters/*/ 2>/dev/null || { echo "error: stop these clusters first: make down NAME=..."; exit 2; }
	@chmod -R u+w "$(PLIMSOLL_CACHE)"/go 2>/dev/null || true
	rm -rf "$(PLIMSOLL_CACHE)"

# `make demo` and `make test` set up their environment themselves.
PYTHON ?= python3
VENV   ?= .venv
BIN    := $(VENV)/bin
ARGS   ?=
GPUS   ?=
# Of the image and what is installed on a cluster.
IMAGE  ?=
OVERLAY ?=
WITH   ?=
CONTAINER_TOOL ?= docker
KUBECTL ?= kubectl
KUBE_SCHEDULER ?= registry.k8s.io/kube-scheduler
KUBERNETES ?=
CORES  := $(shell nproc 2> /dev/null || echo 1)
# One process more than there are cores leaves none idle. Outside the pure ring, tests wait for programs more than they
# compute: on a small machine twice as many take a quarter less time.
WORKERS := $(shell expr $(CORES) + 1)
WAITING := $(shell expr $(CORES) + 1 + $$([ $(CORES) -lt 8 ] && echo $(CORES) || echo 0))
SEED   := $(or $(SEED),$(shell date +%s))
# The pure ring, whose branches are all tested: what takes values and returns values.
PURE := $(subst /,.,$(basename $(addprefix gpu_device_plugin/,model node/rules scheduler/rules report/rules programs/doctor/rules) \
  $(wildcard gpu_device_plugin/features/*/rules gpu_device_plugin/features/*/rules.py gpu_device_plugin/features/*/contract.py gpu_device_plugin/features/*/report.py)))
PURE_TESTS := $(addprefix tests/,model node/rules scheduler/rules report/rules programs/doctor/rules features/cost) \
  $(wildcard tests/features/*/rules tests/features/*/test_rules.py tests/features/*/test_contract.py tests/features/*/test_report.py)
# Where it is set, every program that a test starts compiles the package anew, and every process of pytest all tests.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo test explore check compiled pure others lowest coverage lint types imports protos protos-check locks bench placement picture docs e2e cluster mutants dist release clean \
  image push deploy undeploy manifests image-named kubectl-found cluster-reached overlay-known rendered
.DEFAULT_GOAL := help

help:  ## list the targets
	@grep -hE '^[a-z0-9-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | sort

# What the programs need, and so the demo; those who change them need what follows too.
$(VENV)/.installed: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Python 3.11 or newer is needed; set PYTHON=/path/to/it")'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

$(VENV)/.ready: $(VENV)/.installed
	$(BIN)/pip install --quiet --disable-pip-version-check --upgrade 'pip>=25.1'  # which knows --group
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --group dev
	touch $@

demo: $(VENV)/.installed  ## GPUs shared between pods, live in the terminal (ARGS=--once prints and exits; GPUS=nvml uses real GPUs)
	$(BIN)/gpu-device-plugin demo $(if $(GPUS),--gpus $(GPUS)) $(ARGS)

test: check  ## run everything that CI runs

# Outside the pure ring, tests wait more than they compute: the others use that time.
check: $(VENV)/.ready  ## format, lint, types, import contracts, generated code, tests, coverage of the pure ring
	$(MAKE) --no-print-directory --jobs=2 --output-sync=line types compiled lint imports protos-check
	$(MAKE) --no-print-directory --jobs=2 --output-sync=line others pure

# Once for the workers of both runs: at the same time each would compile most of the tests for itself.
compiled: $(VENV)/.ready
	@$(BIN)/pytest --collect-only -qq > /dev/null || true  # what is wrong with them is for those runs to say

pure: $(VENV)/.ready
	$(BIN)/pytest -n $(WORKERS) $(PURE_TESTS) $(PURE:%=--cov=%) --cov-fail-under=100 $(ARGS)

others: $(VENV)/.ready
	$(BIN)/pytest -n $(WAITING) --dist worksteal $(PURE_TESTS:%=--ignore=%) $(ARGS)

# Wheels alone: a version without them is no floor.
.venv-lowest/.ready: pyproject.toml
	$(PYTHON) -m venv .venv-lowest
	.venv-lowest/bin/pip install --quiet --disable-pip-version-check uv
	.venv-lowest/bin/uv pip install --quiet --python .venv-lowest/bin/python --resolution lowest-direct \
	  --only-binary :all: --no-binary gpu-device-plugin --group dev --editable .
	touch $@

# The pure ring needs no packages.
lowest: .venv-lowest/.ready  ## the tests outside the pure ring, with the lowest versions that pyproject.toml allows
	.venv-lowest/bin/pytest -n $(WAITING) --dist worksteal $(PURE_TESTS:%=--ignore=%) $(ARGS)

coverage: $(VENV)/.ready  ## what the tests run of the whole package, in twice the time of the tests
	$(BIN)/pytest -n $(WORKERS) --cov $(ARGS)

explore: $(VENV)/.ready  ## randomized tests with new examples (SEED=N repeats those of an earlier run)
	@echo 'make explore SEED=$(SEED) repeats this run.'
	$(BIN)/pytest -n auto -m 'hypothesis or chance' --hypothesis-profile=explore --hypothesis-seed=$(SEED) $(ARGS)

lint: $(VENV)/.ready
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.ready
	$(BIN)/mypy

imports: $(VENV)/.ready
	$(BIN)/lint-imports

PROTOS := $(wildcard protos/gpu_device_plugin/kubelet/_proto/*.proto)

# The folder of what it writes is the argument. The compiler looks for its plugins along PATH.
PROTOC = PATH=$(abspath $(BIN)):$$PATH $(BIN)/python -m grpc_tools.protoc -Iprotos \
  $(foreach kind,python grpc_python mypy mypy_grpc,--$(kind)_out=$(1)) $(PROTOS)

protos: $(VENV)/.ready  ## regenerate gpu_device_plugin/kubelet/_proto
	$(call PROTOC,.)

protos-check: $(VENV)/.ready
	@rm -rf build/protos && mkdir -p build/protos
	@$(call PROTOC,build/protos)
	@diff -r -x __init__.py -x __pycache__ build/protos/gpu_device_plugin/kubelet/_proto gpu_device_plugin/kubelet/_proto \
	  || { echo 'Generated code differs from protos/: run `make protos` and commit the result.'; exit 1; }

# Versions that are pinned stay. A Python that is older than 3.11's last has them too: Debian 12 has 3.11.2.
LOCK = $(BIN)/uv pip compile --quiet --universal --fork-strategy fewest --python-version 3.11 --no-annotate
HASHED = $(LOCK) --constraint constraints.txt --only-binary :all: --generate-hashes --emit-build-options --custom-compile-command 'make locks'

locks: $(VENV)/.ready  ## pin the packages of tests, images and releases after a change of pyproject.toml (ARGS=--upgrade: the newest ones)
	$(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt --group locks
	$(LOCK) --no-header pyproject.toml --group dev --group locks --output-file constraints.txt $(ARGS)
	$(HASHED) pyproject.toml --output-file requirements.lock
	echo hatchling | $(HASHED) - --output-file requirements-build.lock
	$(HASHED) pyproject.toml --group release --output-file requirements-release.lock

bench: $(VENV)/.ready  ## measure speed and size; prints a table
	$(BIN)/python -m bench.node_agent $(ARGS)
	$(BIN)/python -m bench.elastic
	$(BIN)/python -m bench.mig
	$(BIN)/python -m bench.dra
	$(BIN)/python -m bench.extender
	$(BIN)/python -m bench.sampling --nodes 1000
	$(BIN)/python -m bench.need
	$(BIN)/python -m bench.failover
	$(BIN)/python -m bench.learning
	$(BIN)/python -m bench.web
	$(BIN)/python -m bench.page

placement: $(VENV)/.ready  ## GPUs that the real kube-scheduler gives out with each policy (KUBE_BIN, OPENB; ARGS=--help)
	$(BIN)/python -m bench.placement $(ARGS)

e2e: $(VENV)/.ready  ## tests with real programs, which take minutes: the image, and all steps on real Kubernetes (KUBE_BIN=DIR, or KUBECONFIG and E2E_NODE: docs/testing.md)
	E2E=1 $(BIN)/pytest $(ARGS) tests/e2e

cluster: $(VENV)/.ready  ## run a cluster of one node until Ctrl-C, from the programs in KUBE_BIN
	$(BIN)/python -m tests.e2e.starting

picture: $(VENV)/.ready  ## the picture of the page in README.md, by a headless Chromium
	$(BIN)/python -m tests.web.picture docs/img/page.png

docs: $(VENV)/.ready  ## build the documentation as a site, in build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

mutants: $(VENV)/.ready  ## mutation-test the pure ring, for an hour; ARGS='gpu_device_plugin.scheduler.rules.pod_demand.*' tests one module
	rm -rf mutants  # mutmut would reuse its earlier results although tests have changed
	$(BIN)/pip install --quiet --disable-pip-version-check mutmut
	$(BIN)/mutmut run $(ARGS)

# --- The image, and a cluster ---------------------------------------------------------------------------------------

OVERLAYS := $(sort $(patsubst deploy/overlays/%/kustomization.yaml,%,$(wildcard deploy/overlays/*/kustomization.yaml)))
# One of ours by its name, or a folder of yours by its path.
NAMED_OVERLAY := $(OVERLAY:%/=%)
OVERLAY_DIR := $(if $(findstring /,$(NAMED_OVERLAY)),$(NAMED_OVERLAY),$(NAMED_OVERLAY:%=deploy/overlays/%))
# Each is a file of deploy/optional, a patch of the agent in deploy/patches, or both.
OPTIONS := $(sort $(filter-out extender-% kube-scheduler-% dra-templates,$(patsubst deploy/optional/%.yaml,%,$(wildcard deploy/optional/*.yaml))) \
  $(patsubst deploy/patches/%-agent.yaml,%,$(wildcard deploy/patches/*-agent.yaml)))
# An image is NAME, NAME:TAG or NAME@DIGEST; the NAME may have the port of a registry, before its last slash.
DIGEST := $(word 2,$(subst @, ,$(IMAGE)))
NAME_AND_TAG := $(firstword $(subst @, ,$(IMAGE)))
TAG := $(or $(word 2,$(subst :, ,$(lastword $(subst /, ,$(NAME_AND_TAG))))),latest)
OUR_IMAGE := {name: gpu-device-plugin, newName: "$(NAME_AND_TAG:%:$(TAG)=%)", $(if $(DIGEST),digest: "$(DIGEST)",newTag: "$(TAG)")}
CHOSEN := $(sort $(WITH))
PATCHES := $(wildcard $(CHOSEN:%=deploy/patches/%-agent.yaml))
RENDERED := build/deploy
# Shells read them between single quotes.
$(foreach each,IMAGE OVERLAY WITH KUBERNETES KUBE_SCHEDULER,$(if $(findstring ',$($(each))),$(error $(each) has a single quote)))

# `make -j image push deploy` must not start them together: each needs the one before it.
ifneq ($(filter image push deploy undeploy,$(MAKECMDGOALS)),)
.NOTPARALLEL:
endif

image-named:
	@[ -n '$(IMAGE)' ] || { echo 'Name the image: make $(firstword $(MAKECMDGOALS)) IMAGE=REGISTRY/gpu-device-plugin:0.2.0' >&2; exit 1; }
	@printf '%s\n' '$(IMAGE)' \
	  | grep -Eqx '([A-Za-z0-9.-]+(:[0-9]+)?/)?[a-z0-9]+(([._-]+|/)[a-z0-9]+)*(:[A-Za-z0-9_][A-Za-z0-9_.-]*)?(@sha256:[0-9a-f]{64})?' \
	  || { echo 'IMAGE=$(IMAGE) is no name of an image. Write lower-case letters, as in IMAGE=registry.example:5000/team/gpu-device-plugin:0.2.0' >&2; exit 1; }

kubectl-found:
	@command -v $(firstword $(KUBECTL)) > /dev/null \
	  || { echo 'There is no program $(firstword $(KUBECTL)). Install kubectl, or say what yours is, as in KUBECTL="k3s kubectl".' >&2; exit 1; }

# Else kubectl says the same of every object, and not which file it did not find.
cluster-reached: kubectl-found
	@why=$$($(KUBECTL) version --request-timeout=10s 2>&1 > /dev/null) \
	  || { printf '%s\n' "$$why" | tail -n 1 >&2; \
	    echo "$(KUBECTL) reaches no cluster$${KUBECONFIG:+ with KUBECONFIG=$$KUBECONFIG}." >&2; exit 1; }

overlay-known:
	@[ -z '$(OVERLAY)' ] || { [ -e '$(OVERLAY_DIR)/kustomization.yaml' ] && [ '$(OVERLAY:/%=)' ]; } \
	  || { echo 'There is no overlay $(OVERLAY). OVERLAY is one of: $(OVERLAYS); or the relative path of a folder of yours.' >&2; exit 1; }
	@[ -z '$(filter-out $(OPTIONS),$(WITH))' ] \
	  || { echo 'There is no $(firstword $(filter-out $(OPTIONS),$(WITH))) to install. WITH is some of: $(OPTIONS); as in WITH="web limits"' >&2; exit 1; }

image: image-named  ## build the image IMAGE=REGISTRY/gpu-device-plugin:0.2.0 (CONTAINER_TOOL=podman or buildah; ARGS for its `build`)
	$(CONTAINER_TOOL) build --tag $(IMAGE) --build-arg REVISION=$$(git rev-parse HEAD 2> /dev/null || echo unknown) $(ARGS) .

push: image-named  ## push it to its registry
	$(CONTAINER_TOOL) push $(IMAGE)

# kube-scheduler must not be newer than the API server: without KUBERNETES=v1.x.y the cluster is asked.
rendered: overlay-known kubectl-found
	@mkdir -p $(RENDERED)
	@version=$$(printf '%s' '$(KUBERNETES)' | sed -nE 's/^v?([0-9]+\.[0-9]+\.[0-9]+).*/v\1/p'); \
	[ -z '$(KUBERNETES)' ] || [ -n "$$version" ] \
	  || { echo 'KUBERNETES=$(KUBERNETES) is no version of Kubernetes. Write all three numbers, as in KUBERNETES=v1.31.4' >&2; exit 1; }; \
	[ -n "$$version" ] || version=$$($(KUBECTL) version --request-timeout=10s --output=json 2> /dev/null \
	  | sed -n '/"serverVersion"/,$$ s/.*"gitVersion": "\(v[0-9]*\.[0-9]*\.[0-9]*\).*/\1/p'); \
	{ echo 'resources:'; \
	  for path in deploy $(wildcard $(CHOSEN:%=deploy/optional/%.yaml)); do echo "  - ../../$$path"; done; \
	  $(if $(PATCHES),echo 'patches:';) \
	  for path in $(PATCHES); do \
	    printf '  - target: {kind: DaemonSet, name: gpushare-node}\n    patch: |-\n'; \
	    printf '      %s\n' 'apiVersion: apps/v1' 'kind: DaemonSet' 'metadata: {name: gpushare-node}'; \
	    sed 's/^/      /' $$path; \
	  done; \
	  $(if $(OVERLAY),echo 'components: [../../$(OVERLAY_DIR)]';) \
	  echo 'images:'; \
	  $(if $(IMAGE),echo '  - $(OUR_IMAGE)';) \
	  echo "  - {name: registry.k8s.io/kube-scheduler, newName: \"$(KUBE_SCHEDULER)\"$${version:+, newTag: $$version}}"; \
	} > $(RENDERED)/kustomization.yaml
	@$(KUBECTL) kustomize --load-restrictor=LoadRestrictionsNone $(RENDERED) > $(RENDERED)/install.yaml

manifests: image-named rendered  ## write what `make deploy` would apply into install.yaml (KUBERNETES=v1.x.y: for that version)
	@cp $(RENDERED)/install.yaml install.yaml
	@grep -m 1 -o 'kube-scheduler:v.*' install.yaml | sed 's/^/install.yaml has /'

deploy: image-named overlay-known cluster-reached rendered  ## install it on the cluster of your kubectl (IMAGE=..., OVERLAY=kind or another of deploy/overlays, WITH='web mps' of deploy/optional)
	$(KUBECTL) apply --filename $(RENDERED)/install.yaml
	@sed -n '/^# Next:/,/^[^#]/ s/^#//p' $(or $(OVERLAY_DIR:%=%/kustomization.yaml),deploy/Kustomization)

undeploy: overlay-known cluster-reached rendered  ## remove it from all nodes and from the cluster; pods keep their GPUs until they end (OVERLAY and WITH as with deploy)
	-$(KUBECTL) label nodes --selector gpushare=true gpushare-
	-$(KUBECTL) --namespace gpushare wait --for=delete pod --selector app.kubernetes.io/component=node --timeout=2m
	$(KUBECTL) delete --ignore-not-found --filename $(RENDERED)/install.yaml
	@echo 'In five minutes, to remove what kubelets still list: kubectl inspect gpushare uninstall'

dist: $(VENV)/.ready  ## wheel, source, kubectl plugin, chart, manifests, SBOMs and checksums of the current commit, in dist/
	$(BIN)/python -m tools.release

release: $(VENV)/.ready  ## VERSION=x.y.z: the same with a new version, as a commit and a tag; pushes nothing
	@[ -n '$(VERSION)' ] || { echo 'Name the version: make release VERSION=x.y.z'; exit 1; }
	$(BIN)/python -m tools.release '$(VERSION)'

clean:
	rm -rf .venv .venv-lowest build dist .mypy_cache .ruff_cache .pytest_cache .coverage* mutants

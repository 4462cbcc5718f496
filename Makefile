# One concern each. `make run` needs nothing but Go; what `make test` needs it installs (as root on
# Debian; elsewhere it says what is missing, and the tests that need it skip and say so).

GO      ?= go
BIN     := bin
PREFIX  ?= /usr/local
ARGS    ?=
FUZZ    ?= 30s
SOAK    ?= 10m
STARVE  ?= $(SOAK)
REF     ?= HEAD~1
RUNS    ?= 1

.PHONY: build wheel install run test quick test-loaded repeat programs test-vm needs check race fuzz lint bench bench-restart bench-beside soak docs generate clean

build: ## static programs in bin/
	CGO_ENABLED=0 $(GO) build -trimpath -o $(BIN)/ ./cmd/...

wheel: build ## bin/vigil_run-*.whl: the library for Python, and the program for machines without Go
	python3 python/build_wheel.py --program $(BIN)/controller --out $(BIN)

install: build ## controller, service, and the controller again as vigil
	install -d $(DESTDIR)$(PREFIX)/bin
	install -m 0755 $(BIN)/controller $(BIN)/service $(DESTDIR)$(PREFIX)/bin/
	ln -sf controller $(DESTDIR)$(PREFIX)/bin/vigil

run: build ## the built-in example job, with repairs on; Ctrl-C stops it
	@exec $(BIN)/controller --use-health-check --max-global-restart 3 --status-every 2s $(ARGS)

test: needs check ## everything that must pass; at the end the slowest packages, and how long it took
	@GO='$(GO)' sh tools/test.sh

quick: ## unit tests and stories, without those that take real time; seconds where nothing has changed, under a minute with a warm build cache
	$(GO) test -short -timeout 10m . ./cmd/... ./bench/result ./internal/...

test-loaded: ## every test once beside 30 busy loops, in parts: PART=3 is one of them, PKG=./internal/service/... one package
	@GO='$(GO)' sh tools/loaded.sh $(or $(PKG),$(PART))

repeat: ## the tests RUN of the package PKG, N times, JOBS at a time; what failed runs said is kept
	@GO='$(GO)' sh tools/repeat.sh $(or $(PKG),$(error want PKG=./internal/service)) '$(or $(RUN),.)' $(or $(N),20) $(or $(JOBS),1) $(if $(ARGS),-- $(ARGS))

programs: ## real torchrun, Hugging Face and Lightning trainings; installs 5 GB in the user's cache, once
	@GO='$(GO)' sh tools/programs.sh

test-vm: ## a virtual machine with cgroup v2 alone and systemd: the unit, power cuts, a reboot; installs qemu, and a Debian of 1 GB in the user's cache
	@GO='$(GO)' sh tools/vm.sh

needs:
	@sh tools/needs.sh

check:
	@unformatted=$$(gofmt -l $$(git ls-files '*.go' 2>/dev/null || find . -name '*.go')); \
	  if [ -n "$$unformatted" ]; then echo "gofmt would change: $$unformatted"; exit 1; fi
	$(GO) vet ./...

race: ## everything under the race detector
	$(GO) test -timeout 30m -race ./...

fuzz: ## every fuzz test for FUZZ each
	@for f in $$(grep -rlE '^func Fuzz' --include='*_test.go' internal); do \
	  for name in $$(sed -nE 's/^func (Fuzz[A-Za-z0-9_]+).*/\1/p' $$f); do \
	    $(GO) test -run '^$$' -fuzz "^$$name\$$" -fuzztime $(FUZZ) ./$$(dirname $$f) || exit 1; done; done

lint: ## golangci-lint, pinned in tools/golangci-lint.mod
	$(GO) tool -modfile=tools/golangci-lint.mod golangci-lint run ./...

bench: build ## tables on the terminal, and bench/out/NAME.json
	$(GO) run ./bench/loop
	$(GO) run ./bench/takeover
	$(GO) run ./bench/detect -plot docs/detect.svg

bench-restart: build ## a PyTorch job broken under vigil, torchrun and an ideal supervisor; half an hour, and docs/restart.svg
	$(GO) run ./bench/restart -plot docs/restart.svg

bench-beside: ## make bench of the commit REF and of this tree in turns, RUNS times, side by side
	$(GO) run ./bench/beside -ref $(REF) -runs $(RUNS) loop takeover

soak: ## jobs broken at random for SOAK, a job without CPUs for STARVE, jobs told to stop in every order 20 times, tiny-rl broken ten times, 500 controllers killed, 2,000 restarts and 50 runs that leave a bounded state
	VIGIL_SOAK=$(SOAK) VIGIL_STARVE=$(STARVE) $(GO) test ./e2e/soak -timeout 0 -count=1 -v
	TINY_RL_LONG=1 $(GO) test ./e2e/tinyrl -run Long -timeout 20m -count=1 -v
	VIGIL_TERM=20 $(GO) test ./e2e/takeover -run TermReaches -timeout 0 -count=1 -v
	VIGIL_WARM=100 $(GO) test ./e2e/warm -run 'InARow|LastBit' -timeout 60m -count=1 -v
	VIGIL_RETENTION=all $(GO) test ./e2e/soak -run Retention -timeout 0 -count=1 -v
	VIGIL_TAKEOVER=all VIGIL_TAKEOVER_RANDOM=500 VIGIL_AWAY=9m $(GO) test ./e2e/takeover -timeout 60m -count=1 -v

docs: generate ## everything in docs/ and api/ that is made from code
	$(GO) test ./internal/job -update
	$(GO) generate ./internal/wire/httpapi

generate: ## Go code from api/*.proto
	$(GO) tool -modfile=tools/buf.mod buf generate

clean:
	rm -rf $(BIN) bench/out

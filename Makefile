# Every target sets up what it needs. `make demo` and `make test` are the way in.
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
DEBS   := bird2 nftables iproute2 iputils-ping procps util-linux conntrack etcd-server

.PHONY: setup fmt check test test-fast peer peer-golden test-peer demo lab-down bench bench-cutover bench-ipam bench-gc soak soak-ipam clean

setup: $(STAMP)

$(STAMP): pyproject.toml Makefile
	./scripts/setup.sh "$(VENV)" $(DEBS)
	touch $@

fmt: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

check: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports

test: setup
	$(PY) -m pytest tests

test-fast: setup
	$(PY) -m pytest tests/unit tests/property

# Calico's own programs, from its Go modules; not part of `test`, see tests/peer/README.md.
PEER := build/peer/calicoctl build/peer/ipambench build/peer/ipampeer

peer: $(PEER)

$(PEER) &: $(wildcard tests/peer/go.* tests/peer/*/*.go)
	mkdir -p build/peer
	cd tests/peer && go build -mod=readonly -trimpath -o ../../build/peer/ ./ipambench ./ipampeer github.com/projectcalico/calico/calicoctl/calicoctl
	touch $(PEER)

test-peer: setup peer
	$(PY) -m pytest tests/peer

peer-golden: setup peer
	$(PY) -m tests.peer.story

demo: setup
	$(VENV)/bin/lab demo --report report.json --html report.html

lab-down: setup
	$(VENV)/bin/lab down

bench: bench-cutover bench-ipam bench-gc

bench-ipam: setup
	$(PY) -m tests.bench.ipam --out bench/ipam.json

bench-gc: setup
	$(PY) -m tests.bench.gc --out bench/gc.json

bench-cutover: setup
	$(VENV)/bin/lab bench --out bench/cutover.json

soak: setup
	TORTIE_SOAK=1 $(PY) -m pytest tests/property

soak-ipam: setup
	$(PY) -m tests.fakes.ipam_soak --operations 1000000

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache report.json report.html

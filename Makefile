# Everything that a fresh checkout needs, a word each. `make demo` runs the main job, `make test` passes the tests;
# both set up whatever is missing, inside this folder (.venv, target) and the usual user caches.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
RUST_SOURCES := $(shell find crates -name '*.rs' -o -name 'Cargo.toml') Cargo.toml Cargo.lock pyproject.toml
# The C interface beside the Rust sources: penstock.h and what is installed with it.
C_SOURCES := $(shell find crates/penstock-capi -name '*.h' -o -name '*.in' -o -name '*.sh')
CARGO_OUT := $(or $(CARGO_TARGET_DIR),target)
C_LIBRARY := $(CARGO_OUT)/release/libpenstock.so
# Where `make install` installs; DESTDIR goes in front of it, for packages.
PREFIX ?= /usr/local
export PIP_QUIET := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# A test that hangs must fail, and say where. What compiles has no limit: machines differ.
LIMIT := timeout --verbose 900
# What the package and one of its extras need, with those that this one names, a requirement a line.
REQUIREMENTS := import sys, tomllib; p = tomllib.load(open("pyproject.toml", "rb"))["project"]; own = p["name"] + "["; of = lambda extras: [one for extra in extras.split(",") for r in p["optional-dependencies"][extra] for one in (of(r[len(own):-1]) if r.startswith(own) else [r])]; print(*p["dependencies"], *of(sys.argv[1]), sep="\n")
# The extra that is downloaded and unpacked while the compiler is at work.
EXTRA := demo

.PHONY: demo build library install test test-env lint format test-crates test-rust test-model test-memory test-miri test-tsan test-fuzz test-python test-netns fuzz soak bench docs clean help

help: ## what can be made
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 14

demo: $(VENV)/.python ## train a real model with two workers and a server, beside a single process
	$(BIN)/penstock demo

build: $(VENV)/.built $(VENV)/.bench ## a ready virtual environment in .venv, with the C interface

$(BIN)/python:
	@command -v cargo >/dev/null || { echo "error: cargo was not found"; echo; echo "hint: install Rust from https://rustup.rs"; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "error: $(PYTHON) is older than 3.11"; echo; echo "hint: make PYTHON=python3.12 $(MAKECMDGOALS)"; exit 1; }
	$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); $(PYTHON) -m pip install --user --quiet virtualenv && $(PYTHON) -m virtualenv --quiet $(VENV); } \
	  || { echo "error: $(PYTHON) cannot make a virtual environment"; echo; echo "hint: apt-get install python3-venv"; exit 1; }

$(VENV)/.tools: | $(BIN)/python
	$(BIN)/python -m pip install 'maturin>=1.7,<2'
	@touch $@

$(VENV)/.python: $(RUST_SOURCES) | $(VENV)/.tools
	@$(BIN)/python -c '$(REQUIREMENTS)' $(EXTRA) > $(VENV)/requirements.txt
	@$(BIN)/python -m pip install -r $(VENV)/requirements.txt & pip=$$!; \
	  VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --quiet --skip-install; built=$$?; \
	  wait $$pip && exit $$built
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --quiet --extras demo
	@touch $@

$(VENV)/.built: $(C_SOURCES) $(VENV)/.python
	@$(MAKE) --no-print-directory library
	crates/penstock-capi/install.sh $(CARGO_OUT)/release python/penstock package
	@touch $@

# `penstock bench`: a package of its own, which is in no wheel.
$(VENV)/.bench: bench/pyproject.toml | $(VENV)/.python
	$(BIN)/python -m pip install --no-deps --editable bench
	@touch $@

library: $(C_LIBRARY) ## libpenstock.so and libpenstock.a, in target/release

# cargo leaves a library that has not changed as old as it is: make must not ask again.
$(C_LIBRARY): $(RUST_SOURCES)
	cargo build --release --quiet -p penstock-capi
	@touch $@

install: library ## the C interface, below PREFIX (/usr/local) and behind DESTDIR: penstock.h, libpenstock, pkg-config, CMake, penstock-server
	cargo build --release --quiet -p penstock-server
	crates/penstock-capi/install.sh $(CARGO_OUT)/release $(DESTDIR)$(PREFIX)

test: test-env lint test-crates test-fuzz test-memory test-python ## lints, types, and every test but the benchmarks

# Gigabytes: to unpack them behind the compiler would take minutes.
test-env: EXTRA := dev
test-env: $(VENV)/.built $(VENV)/.bench $(VENV)/.test-env

$(VENV)/.test-env: pyproject.toml | $(VENV)/.built
	VIRTUAL_ENV=$(abspath $(VENV)) $(BIN)/maturin develop --release --quiet --extras dev
	@touch $@

# Types are looked at on one core, and so is much of what clippy does: both at once.
lint: test-env ## formatting, lints, types
	cargo fmt --all --check
	$(BIN)/ruff format --check --quiet python bench tests examples docs/conf.py
	$(BIN)/ruff check --quiet python bench tests examples docs/conf.py
	@$(BIN)/mypy --no-error-summary & types=$$!; \
	  cargo clippy --workspace --all-targets --quiet -- -D warnings; lints=$$?; \
	  wait $$types && exit $$lints

format: test-env ## put the formatting right
	cargo fmt --all
	$(BIN)/ruff format --quiet python bench tests examples docs/conf.py
	$(BIN)/ruff check --quiet --fix python bench tests examples docs/conf.py

# Not told of a jobserver that this make hands to other makes only.
CARGO := env -u MAKEFLAGS cargo
test-rust: ## unit, property and promise tests of the crates, and the simulator over some hundred seeds
	$(CARGO) test --workspace --quiet --no-run
	env -u MAKEFLAGS $(LIMIT) $(PYTHON) tests/crates.py

# Tests of the crates wait more than they compute, so the models run beside them at the lowest priority.
test-crates: ## test-rust, and test-model beside it
	cargo test --workspace --quiet --no-run
	@$(MAKE) --no-print-directory -j2 --output-sync=line test-rust test-model LEFT_OVER="nice -n 19"

MODEL := -p penstock-fabric --lib --release --quiet
test-model: export RUSTFLAGS := --cfg loom
test-model: export CARGO_TARGET_DIR := target/loom
test-model: ## the lock-free protocols, every interleaving (loom)
	$(LEFT_OVER) $(CARGO) test $(MODEL) --no-run
	timeout --verbose 1800 $(LEFT_OVER) $(CARGO) test $(MODEL)

REPLAY := --quiet --manifest-path fuzz/Cargo.toml --bin replay
# Beside the tests' build: what both need of others is compiled once.
test-fuzz: export CARGO_TARGET_DIR := $(abspath $(CARGO_OUT))
test-fuzz: ## the corpus of every fuzzing target, and mutations of it for some seconds (stable; `make fuzz` is the real thing)
	cargo build $(REPLAY)
	$(LIMIT) cargo run $(REPLAY) -- 9

# What watches over every load and store: an interpreter, and a compiler that notes them. Both take long: `make test` runs the
# part that proves most (SHORT=1).
test-memory: ## what of test-miri and test-tsan proves most, in some minutes
	@$(MAKE) --no-print-directory test-miri test-tsan SHORT=1

NIGHTLY_HAS = rustup +nightly component list 2>/dev/null | grep -q '^$(1).*(installed)'
# Tree Borrows, since an atomic load of bytes that are lent to be read is none that Stacked Borrows knows. Without the emulation
# of weak memory, which loom is for: it panics where words of two sizes meet at one place, as copies at odd addresses have them.
test-miri: export MIRIFLAGS := -Zmiri-tree-borrows -Zmiri-disable-isolation -Zmiri-disable-weak-memory-emulation
test-miri: export PROPTEST_CASES := 2
test-miri: export CARGO_TARGET_DIR := target/miri
MIRI := cargo +nightly miri test --quiet --lib
MIRI_LIMIT := timeout --verbose 1800 $(MIRI)
test-miri: ## kernels in portable Rust, frames, and memory that others may be writing, under Miri (needs nightly with miri and rust-src)
	@if ! { $(call NIGHTLY_HAS,miri-) && $(call NIGHTLY_HAS,rust-src); }; then \
	  echo "SKIPPED: Miri is not installed: rustup toolchain install nightly --component miri --component rust-src"; \
	elif [ -n "$(SHORT)" ]; then set -e; set -x; \
	  $(MIRI) -p penstock-kernels -p penstock-fabric --no-run; \
	  $(MIRI_LIMIT) -p penstock-kernels -- foreign::; \
	  $(MIRI_LIMIT) -p penstock-fabric -- memory:: region:: ring:: turn::; \
	else set -e; set -x; \
	  $(MIRI) -p penstock-kernels -p penstock-fabric -p penstock-proto --no-run; \
	  $(MIRI_LIMIT) -p penstock-kernels -- foreign:: tests::torch tests::promises generic::a_fold generic::accumulate generic::the_first; \
	  $(MIRI_LIMIT) -p penstock-fabric -- memory:: region:: items:: ring:: turn::; \
	  $(MIRI_LIMIT) -p penstock-proto -- frame:: submission:: record::; fi

# The standard library is compiled with it, so that locks and channels are understood.
test-tsan: export RUSTFLAGS := -Zsanitizer=thread --cfg penstock_portable
test-tsan: export CARGO_TARGET_DIR := target/tsan
test-tsan: export TSAN_OPTIONS := halt_on_error=1
TSAN := cargo +nightly test -Zbuild-std --target $(shell rustc -vV | sed -n 's/^host: //p') --quiet
TSAN_LIMIT := timeout --verbose 2400 $(TSAN)
TSAN_MEMORY := -p penstock-fabric --lib
TSAN_PROMISES := -p penstock --test staleness_bound --test tables --test network --test bounded_waits
test-tsan: ## shared memory, and the promise tests with real threads, under ThreadSanitizer (needs nightly with rust-src)
	@if ! $(call NIGHTLY_HAS,rust-src); then \
	  echo "SKIPPED: ThreadSanitizer needs the standard library's source: rustup toolchain install nightly --component rust-src"; \
	else set -e; set -x; \
	  $(TSAN) $(TSAN_MEMORY) --no-run; \
	  $(TSAN_LIMIT) $(TSAN_MEMORY) -- memory:: items::; \
	  if [ -z "$(SHORT)" ]; then \
	    $(TSAN) $(TSAN_PROMISES) --no-run; \
	    $(TSAN_LIMIT) $(TSAN_PROMISES); fi; fi

FUZZ_SECONDS ?= 20
fuzz: ## every fuzzing target under libFuzzer, FUZZ_SECONDS each (needs nightly and cargo-fuzz)
	@if ! cargo +nightly fuzz --version >/dev/null 2>&1; then \
	  echo "SKIPPED: libFuzzer needs nightly and cargo-fuzz: rustup toolchain install nightly && cargo install cargo-fuzz"; \
	else for target in $$(cd fuzz/fuzz_targets && ls *.rs); do \
	  cargo +nightly fuzz run --features fuzzing $${target%.rs} -- -max_total_time=$(FUZZ_SECONDS) -max_len=4096 || exit 1; done; fi

test-netns: test-env ## jobs on several test hosts (network namespaces; needs root), which `make test` runs too where it can
	timeout --verbose 900 $(BIN)/python -m pytest tests/netns

test-python: test-env ## real processes, golden trajectories, the command line, the README's own commands
	timeout --verbose 2400 $(BIN)/python -m pytest --durations 25 --numprocesses 3 --dist loadfile

KILLS ?= 1000
MANAGED ?= 300
CUTS ?= 500
soak: test-env ## processes killed at random moments, a thousand times, managers and their servers, three hundred, and connections cut, five hundred of each kind (about an hour; docs/soak.md)
	$(BIN)/python tests/soak/kills.py --schedules $(KILLS)
	$(BIN)/python tests/soak/managed.py --schedules $(MANAGED)
	PENSTOCK_CUTS=$(CUTS) cargo test --quiet -p penstock --test cuts -- --nocapture

bench: test-env ## the benchmark of the README, beside its peers and the machine's limit
	$(BIN)/penstock bench pushpull --workers 2 --size 64MiB

docs: $(VENV)/.docs $(VENV)/.bench ## these pages and the API as a site, in target/site (a dead link fails), and the Rust documentation, in target/doc
	$(BIN)/python -m sphinx -E -W --keep-going -q docs target/site
	RUSTDOCFLAGS="-A rustdoc::private_intra_doc_links" cargo doc --workspace --no-deps

$(VENV)/.docs: pyproject.toml | $(VENV)/.python
	@$(BIN)/python -c '$(REQUIREMENTS)' docs > $(VENV)/requirements.txt
	$(BIN)/python -m pip install -r $(VENV)/requirements.txt
	@touch $@

clean: ## remove what was built, the virtual environment too
	rm -rf target $(VENV) bench-results python/penstock/include python/penstock/lib

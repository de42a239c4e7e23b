# Short names for what people do here. `make` alone prints them.
JOBS ?= $(shell nproc)
PRESET ?= release
BUILD = build/$(PRESET)
PYTHON ?= python3
PREFIX ?= /usr/local
FUZZ_RUNS ?= 5000000
VERSION = $(shell sed -n 's/^project.thespis VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

.DEFAULT_GOAL := help
.PHONY: help deps build demo install uninstall dist deb test test-long stage-faults stage-table gpu-check fuzz-long parity format clean

help:
	@echo "make demo       install what is missing, build, and say a sentence into hello.wav"
	@echo "make test       install what is missing, build, and run the tests (under 10 minutes on 2 cores)"
	@echo "make build      the program and the library in $(BUILD) (PRESET=debug|asan|tsan|fuzz for others)"
	@echo "make test-long  against the third-party reference, an independent recogniser, real recordings (needs Python)"
	@echo "make stage-faults  plants five mistakes in the network: each must fail the quality test (about 6 minutes)"
	@echo "make stage-table   speak, listen and print the quality table of models/stage anew (needs Python; about an hour)"
	@echo "make install    program, library, header, manual, completion and checkpoint below PREFIX ($(PREFIX)); DESTDIR goes before it"
	@echo "make uninstall  removes what make install put there"
	@echo "make dist       the sources of the last commit as build/thespis-VERSION.tar.gz"
	@echo "make deb        a Debian package in build/deb"
	@echo "make gpu-check  on a machine with a CUDA GPU: contract, parity, same bytes, figures (scripts/gpu-check --help)"
	@echo "make fuzz-long  millions of inputs for every parser (FUZZ_RUNS=$(FUZZ_RUNS) each; hours)"
	@echo "make parity     measure again what docs/parity.md holds (needs Python)"
	@echo "make format     clang-format over all sources"
	@echo "make clean      remove build/"

deps:
	@scripts/install-deps

build: deps
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS)

# Only the program: the tests take longer to build.
demo: PRESET = release
demo: deps
	@cmake --preset $(PRESET) >/dev/null
	@cmake --build $(BUILD) -j $(JOBS) --target thespis libthespis
	$(BUILD)/thespis speak --seed 7 --out hello.wav "The stage is set, and every word is spoken live."
	@echo "hello.wav is there: play it with any player."

# Builds first, as whoever builds; then `sudo make install` only copies.
install: PRESET = release
install:
	@[ -x $(BUILD)/thespis ] && [ -f $(BUILD)/libthespis.so ] && [ -f $(BUILD)/manual/stamp ] || $(MAKE) build PRESET=release
	@cmake --install $(BUILD) --prefix $(PREFIX) >/dev/null
	@[ -n "$(DESTDIR)" ] || [ "$$(id -u)" -ne 0 ] || ldconfig
	@echo "installed below $(DESTDIR)$(PREFIX)"

uninstall: PRESET = release
uninstall:
	@scripts/uninstall $(BUILD)/install_manifest.txt

dist:
	@mkdir -p build
	@git archive --prefix=thespis-$(VERSION)/ -o build/thespis-$(VERSION).tar.gz HEAD
	@echo "build/thespis-$(VERSION).tar.gz"

deb:
	@scripts/install-deps deb
	@cmake -S . -B build/deb -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr -DTHESPIS_TESTS=OFF >/dev/null
	@cmake --build build/deb -j $(JOBS) --target all
	@cd build/deb && cpack -G DEB >cpack.log || { cat cpack.log; exit 1; }
	@ls build/deb/*.deb

test: PRESET = ci
test:
	@scripts/test

stage-faults:
	@scripts/install-deps ci
	@cmake --preset faults >/dev/null
	@cmake --build build/faults -j $(JOBS) --target test_quality
	build/faults/test_quality

stage-table: PRESET = release
stage-table: build
	tools/stage/evaluate --program $(BUILD)/thespis

test-long:
	@scripts/test-long

gpu-check:
	@scripts/gpu-check --out bench/results/$(shell nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1 | tr 'A-Z ' 'a-z-' | sed 's/^nvidia-//;s/^$$/gpu/').json

fuzz-long:
	@scripts/fuzz --runs $(FUZZ_RUNS)

parity:
	@scripts/parity

format:
	@git ls-files '*.c' '*.h' | grep -v unicode_tables | xargs clang-format-14 -i

clean:
	rm -rf build

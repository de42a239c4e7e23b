# Short names for what people do here. `make` alone prints them.
JOBS ?= $(shell nproc)
PRESET ?= release
BUILD = build/$(PRESET)
PYTHON ?= python3

.DEFAULT_GOAL := help
.PHONY: help deps build demo test test-long check-style check-sanitize parity format clean

help:
	@echo "make demo       install what is missing, build, and say a sentence into hello.wav"
	@echo "make test       install what is missing, build, and run the tests (under 10 minutes on 2 cores)"
	@echo "make build      the program and the library in $(BUILD) (PRESET=debug|asan|tsan|fuzz for others)"
	@echo "make test-long  against the third-party reference, an independent recogniser, real recordings (needs Python)"
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

test: PRESET = ci
test:
	@scripts/test

test-long:
	@scripts/test-long

parity:
	@scripts/parity

format:
	@git ls-files '*.c' '*.h' | grep -v unicode_tables | xargs clang-format-14 -i

clean:
	rm -rf build

# Two commands: `make demo` sets up and runs the main job, `make test` sets up and passes every test.
.PHONY: help demo test soak lab studies setup format clean

help:
	@echo "make demo    set up, then run the main job: healthy, then with ECN marking off"
	@echo "make test    set up with the development tools, then lint, type-check and test everything"
	@echo "make soak    the same with every case of the longest tables, and longer fuzzing; before a release"
	@echo "make lab     two virtual machines with netem, red and Soft-RoCE on a wire (docs/lab.md)"
	@echo "make studies all studies of experiments/, nine minutes on an idle machine (docs/studies.md)"
	@echo "make setup   system packages where missing, .venv, the build"
	@echo "make format  format Python and C++"
	@echo "make clean   remove builds and caches (runs/ and .venv stay)"

demo:
	@scripts/demo

test:
	@scripts/test

soak:
	@scripts/test --soak

lab:
	@scripts/setup --lab
	@scripts/lab up

studies:
	@experiments/run all

setup:
	@scripts/setup

format:
	.venv/bin/ruff format .
	.venv/bin/ruff check --fix-only .
	find native -name '*.cpp' -o -name '*.hpp' -o -name '*.h' | xargs clang-format -i

clean:
	rm -rf build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find genie tests -name __pycache__ -prune -exec rm -rf {} +

# What people do most. Each target calls a script; `make` alone lists them.
.DEFAULT_GOAL := help
MINUTES ?= 10
BROKERS ?= 3

.PHONY: help setup demo check fix test nightly up down replay soak mutants spec docs

help: ## list the targets
	@sed -n 's/^\([a-z]*\):.*## /  make \1\t/p' $(MAKEFILE_LIST) | expand -t 18

setup: ## make .venv and install everything into it
	scripts/setup

demo: ## a cluster, failures, export and Spark, in about a minute
	scripts/demo

check: ## lint, format, types
	scripts/check

fix: ## repair lint and format
	scripts/check --fix

test: ## the gate: lint, types, and all tests but the nightly ones
	scripts/test

nightly: ## every check and test
	scripts/test --all

up: ## start three controllers and BROKERS=3 brokers in .raftlog/
	scripts/quorum start
	scripts/broker start --count $(BROKERS)

down: ## stop them
	scripts/broker stop
	scripts/quorum stop

replay: ## ask an export with Spark: make replay EXPORT=exported
	scripts/replay $(EXPORT)

soak: ## fresh seeds of the simulator for MINUTES=10
	scripts/soak --minutes $(MINUTES)

mutants: ## break the code on purpose and see which check notices
	scripts/mutants

spec: ## check the specifications of LAO and of the quorum with TLC
	scripts/spec

docs: ## build the site of the documents, with the reference, into site/
	scripts/setup --quiet
	NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --strict

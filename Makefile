# Every target makes its own environment first; nothing needs to be installed before but Python >= 3.11.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: run test test-slow test-extras test-ray docs pictures bench-store bench-data bench-client-states bench-fleet bench-heterogeneity bench-transforms bench-defences bench-tracking bench-hpo bench-flair bench-ray bench-deploy bench-speed study-heterogeneity clean help

# Two environments must not be installed at once, whatever -j says.
.NOTPARALLEL:

help:  ## Show the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

# The stamps remember which pyproject.toml an environment was made from, so a second call starts at once. One call of pip
# is enough for each, and bytecode is made afterwards, by all cores instead of one; what no Python can compile (templates
# of packages) is left out.
STAMPS := $(addprefix $(VENV)/.installed,-test -extras -ray -docs)
$(VENV)/.installed-test: EXTRAS = [test]
$(VENV)/.installed-extras: EXTRAS = [test,huggingface,wandb,mlflow]
$(VENV)/.installed-ray: EXTRAS = [test,ray]
$(VENV)/.installed-docs: EXTRAS = [docs,pictures]

$(VENV)/.installed $(STAMPS): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "FedArena needs Python 3.11 or newer; set PYTHON=/path/to/python3.11"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@echo "Installing fedarena$(EXTRAS) into $(VENV) (once, takes minutes) ..."
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.$(EXTRAS)'
	@$(BIN)/python -m compileall -qq -j 0 -x '/tests?/' $(VENV)/lib || true
	@touch $(VENV)/.installed $@

run: $(VENV)/.installed  ## Compare four methods on real users' messages and phones; writes a report
	@$(BIN)/fedarena suite quickstart

test: $(VENV)/.installed-test  ## Lint, types, import rules, tests
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	@echo "$(BIN)/mypy beside $(BIN)/pytest ..."
	@$(BIN)/mypy >$(VENV)/mypy.txt 2>&1 & types=$$!; \
		$(BIN)/pytest -n 3 --dist worksteal -m "not slow and not extras and not ray"; tests=$$?; \
		wait $$types; types=$$?; cat $(VENV)/mypy.txt; exit $$((types + tests))

test-slow: $(VENV)/.installed-test  ## Tests that take longer: benchmarks at a small size, processes that are killed, large files
	$(BIN)/pytest -n 3 --dist worksteal -m "slow and not ray"

test-extras: $(VENV)/.installed-extras  ## Tests of what needs larger packages: Hugging Face, W&B, MLflow
	$(BIN)/pytest -m extras

test-ray: $(VENV)/.installed-ray  ## Tests on Ray clusters: the same bits whoever works and whoever is killed (about 30 minutes)
	$(BIN)/pytest -m ray

docs: $(VENV)/.installed-docs  ## Build the documentation into site/
	$(BIN)/mkdocs build --strict

pictures: run $(VENV)/.installed-docs  ## Draw the pictures of the documentation from the quickstart (needs a Chromium)
	$(BIN)/python docs/make_pictures.py

bench-store: $(VENV)/.installed  ## Measure the federation store at 1.66 million clients
	$(BIN)/python benchmarks/store.py

bench-data: $(VENV)/.installed-test  ## Measure reading files of 660,120 and of 1.66 million users, and a million pictures and recordings (about 20 minutes, 8 GB of disk)
	$(BIN)/python benchmarks/data.py --output docs/benchmarks/data.json
	$(BIN)/python benchmarks/media.py --output docs/benchmarks/media.json

bench-client-states: $(VENV)/.installed  ## Measure what clients' states cost a commit, and RAM
	$(BIN)/python benchmarks/client_states.py

bench-fleet: $(VENV)/.installed  ## Measure a million phones, rounds among them, and ten thousand participants
	$(BIN)/python benchmarks/fleet.py --output docs/benchmarks/fleet.json

bench-heterogeneity: $(VENV)/.installed  ## Measure the heterogeneity metrics beside plain loops, and of 100,000 clients
	$(BIN)/python benchmarks/heterogeneity.py --output docs/benchmarks/heterogeneity.json

bench-transforms: $(VENV)/.installed-test  ## Measure what privacy costs a round, alone and beside pfl's (about 10 minutes)
	$(BIN)/python benchmarks/transforms.py --output docs/benchmarks/transforms.json
	$(BIN)/python benchmarks/private_speed.py --output docs/benchmarks/private_speed.json

bench-defences: $(VENV)/.installed  ## Measure defences over 1,000 clients x 1 million parameters beside numpy.median (8 GB of RAM)
	$(BIN)/python benchmarks/defences.py --output docs/benchmarks/defences.json

bench-tracking: $(VENV)/.installed-extras  ## Measure what trackers and an open watch cost the quickstart (about 20 minutes)
	$(BIN)/python benchmarks/tracking.py --output docs/benchmarks/tracking.json

bench-hpo: $(VENV)/.installed-test  ## Measure tables of hyperparameter search as lanes, beside one trial at a time, and optimizers (OPENML=folder of the files; about 15 minutes)
	$(BIN)/python benchmarks/hpo.py $(if $(OPENML),--folder $(OPENML)) --output docs/benchmarks/hpo.json
	$(BIN)/python benchmarks/hpo_compare.py --output docs/benchmarks/hpo_compare.json

bench-flair: $(VENV)/.installed-test  ## Measure building FLAIR's store beside reading and checking its files alone, and reading a cohort beside Pillow (about 15 minutes, 4 GB of disk)
	$(BIN)/python benchmarks/flair_building.py --output docs/benchmarks/flair_building.json
	$(BIN)/python benchmarks/flair_reading.py --output docs/benchmarks/flair_reading.json

bench-speed: $(VENV)/.installed-docs  ## Compare the speed with pfl, FedJAX and Flower; writes docs/speed.md (about 30 minutes)
	$(BIN)/python benchmarks/speed.py

bench-ray: $(VENV)/.installed-ray  ## Measure engine=ray beside engine=cohort and Flower's Ray simulation
	$(BIN)/python benchmarks/ray_speed.py --output docs/benchmarks/ray.json

bench-deploy: $(VENV)/.installed-test  ## Measure runs on a network of this machine's own: rounds beside Flower's SuperLink, memory of large updates and of 1,000 devices (about 10 minutes, 5 GB of disk)
	$(BIN)/python benchmarks/deploy.py --output docs/benchmarks/deploy.json

study-heterogeneity: $(VENV)/.installed  ## Do metrics of heterogeneity foretell training? Which methods stand it? (STUDY=settings)
	$(BIN)/python benchmarks/heterogeneity_study.py $(STUDY)

clean:  ## Remove the environment and everything generated (not runs/)
	rm -rf $(VENV) .bench site build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

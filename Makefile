# Needs Python with pip, nothing else: 3.10 or newer, which the torch of the demo and of the tests wants.
#
#   make demo                  see the tool at work, in ./.venv
#   make demo-compare          two runs of it that differ in one place, compared
#   make demo-graph            the same two runs as one HTML page, which stands at the place where they part
#   make demo-pack             the two runs of demo-compare as two files to be mailed, compared
#   make demo-live             the second run compared with the first while it runs; it ends where they part
#   make demo-overflow         a training of two ranks of which one overflows: which call it was, and the page
#   make demo-precheck         a step with a wrong kernel: which call it is, and a script that shows it with torch alone
#   make demo-rollout          an engine whose positions are wrong behind the prompt: the kind of mismatch, the token, the layer
#   make demo-checkpoints      a model in three formats and layouts, and faults in it that are named
#   make demo-twice            a training two times, and resumed from its checkpoint: what is not the same, and why
#   make demo-ranks            two ranks of which one gradient is not reduced, and one is reduced two times
#   make demo-fingerprint      a trainer and an engine that samples with old weights, proven by a kilobyte for each parameter
#   make demo-monitor          a training whose loss spikes: the alert, the row that began, a dump of the next step, the page
#   make demo-experts          tokens that take other experts in bfloat16, and a gradient that turns away in one step
#   make demo-mindspore        the same with MindSpore, which has wheels for Python 3.10 to 3.12, in ./.venv-mindspore
#   make demo-msadapter        and with torch's API over MindSpore (Python 3.9 to 3.11), in ./.venv-msadapter
#   make check                 before each commit: lint, types, what needs no framework, the contract suite over PyTorch
#   make test                  every environment of tox.ini, two at a time where there are two cores; TOX_PARALLEL=1
#   make test ENV=core         one of them
#   make reliability           kills and faults in numbers: KILLS=200 SEED=1; see docs/explanations/reliability.md; and everything
#                              that the other tests take samples of
#   make processors            what has rounding in it, with the kernels of other processors and with two threads: a line for
#                              each of them; a part of `make reliability`
#   make newest                what pip gives today without a pin, and the oldest torch: for each of the three releases of torch
#                              6 GB and 20 minutes on two free cores; ENV=oldest-torch runs one environment
#   make verdicts              what a comparison says first, and whether it is right: writes benchmarks/VERDICTS.md;
#                              PARTS="fused packages" does these parts and makes what they need, no more; others are
#                              pairs, faults, ports, speed; ARGUMENTS="--packages mambapy" takes one pair of packages
#   make fuzz SECONDS=60       every reader fuzzed for so long
#   make agreement             one network dumped by every backend, and compared; makes the environments that it needs
#   make develop               an environment for changes to this repository, in ./.venv, and its hooks for commits
#   make dist                  what is released for every machine, in ./dist: the sources, and a wheel without compiled parts
#   make wheels                the wheels with compiled parts for this kind of machine, in ./dist; on Linux it takes docker
#   make docs                  the pages below docs as a site, in ./site; a broken link fails
#   make lint | benchmark | clean

PYTHON ?= python3
ENV ?=
CORES := $(shell getconf _NPROCESSORS_ONLN 2>/dev/null || echo 1)
TOX_PARALLEL ?= $(if $(filter 1,$(CORES)),1,2)
KILLS ?= 200
SEED ?=
ARGUMENTS ?=
PARTS ?= pairs heldout releases precision planted fused packages ports field
# The environments with other interpreters, by the parts of the verdicts that take them.
VERDICT_ENVIRONMENTS := $(if $(filter pairs heldout releases,$(PARTS)),transformers4) $(if $(filter ports,$(PARTS)),mindspore msadapter)

# torch is named first everywhere, so that pip takes this build and not whatever a plain `torch` resolves to.
TORCH := torch==2.13.0
TOX := .tox/bootstrap/bin/tox
NEWEST := newest-torch,previous-torch,oldest-torch,newest-mindspore,newest-msadapter
# Each chooses other kernels, or another order of sums, in torch, in oneDNN, and in numpy's OpenBLAS.
PROCESSORS ?= ATEN_CPU_CAPABILITY=default ATEN_CPU_CAPABILITY=avx2 ONEDNN_MAX_CPU_ISA=SSE41 OPENBLAS_CORETYPE=Prescott OMP_NUM_THREADS=2
# The output of each environment is printed when it ends.
TOX_RUN = $(TOX) $(if $(filter 1,$(TOX_PARALLEL)),run,run-parallel --parallel $(TOX_PARALLEL))

# The first Python on the path that has wheels of MindSpore.
MINDSPORE_PYTHON ?= $(firstword $(foreach python,python3.11 python3.10 $(PYTHON),$(shell command -v $(python))))

.PHONY: demo demo-compare demo-graph demo-pack demo-live demo-overflow demo-precheck demo-rollout demo-checkpoints demo-fingerprint demo-twice demo-ranks demo-monitor demo-experts demo-mindspore demo-msadapter test check lint docs agreement develop dist wheels benchmark verdicts reliability processors newest fuzz clean

demo: .venv/.installed
	.venv/bin/python examples/demo.py

demo-compare: .venv/.installed
	.venv/bin/python examples/demo_compare.py

demo-graph: .venv/.installed
	.venv/bin/python examples/demo_graph.py

demo-pack: .venv/.installed
	.venv/bin/python examples/demo_pack.py

demo-live: .venv/.installed
	.venv/bin/python examples/demo_live.py

demo-overflow: .venv/.installed
	.venv/bin/python examples/demo_overflow.py

demo-precheck: .venv/.installed
	.venv/bin/python examples/demo_precheck.py

demo-rollout: .venv/.installed
	.venv/bin/python examples/demo_rollout.py

demo-checkpoints: .venv/.installed
	.venv/bin/python examples/demo_checkpoints.py

demo-twice: .venv/.installed
	.venv/bin/python examples/demo_twice.py

demo-ranks: .venv/.installed
	.venv/bin/python examples/demo_ranks.py

demo-fingerprint: .venv/.installed
	.venv/bin/python examples/demo_fingerprint.py

demo-monitor: .venv/.installed
	.venv/bin/python examples/demo_monitor.py

demo-experts: .venv/.installed
	.venv/bin/python examples/demo_experts.py

demo-mindspore: .venv-mindspore/.installed
	GLOG_v=3 .venv-mindspore/bin/python examples/demo_mindspore.py

demo-msadapter: .venv-msadapter/.installed
	GLOG_v=3 .venv-msadapter/bin/python examples/demo_msadapter.py

test: .tox/bootstrap/.installed
	$(if $(ENV),$(TOX) run -e $(ENV),$(TOX_RUN))

check: .tox/bootstrap/.installed
	TORCH_TESTS="tests/backends/calls tests/backends/runs tests/backends/values" $(TOX_RUN) -e core,torch,types,lint

lint: .tox/bootstrap/.installed
	$(TOX) run -e lint

docs: .tox/bootstrap/.installed
	$(TOX) run -e docs -- --site-dir site

agreement: .tox/bootstrap/.installed
	$(TOX) run -e torch,mindspore,msadapter --notest
	$(TOX) run -e agreement

dist: .tox/bootstrap/.installed
	$(TOX) run -e dist

wheels: .tox/bootstrap/.installed
	$(TOX) run -e wheels,wheels-stable

# A checkout without .git, such as an unpacked sdist, has no place for hooks.
develop: .venv/.installed
	.venv/bin/python -m pip install --quiet --editable '.[torch,compare,dev]'
	test ! -e .git || .venv/bin/pre-commit install
	@echo 'source .venv/bin/activate, and then for example: pytest tests/common/numerics'

benchmark: .tox/bootstrap/.installed
	$(TOX) run -e benchmark

# The environments whose interpreters it takes; MindSpore has wheels for some Pythons only.
verdicts: .tox/bootstrap/.installed
	$(foreach name,$(VERDICT_ENVIRONMENTS),$(TOX) run -e $(name) --notest &&) $(TOX) run -e verdicts -- --only $(PARTS) $(ARGUMENTS)

reliability: .tox/bootstrap/.installed
	$(TOX) run -e reliability -- --kills $(KILLS) $(if $(SEED),--seed $(SEED))
	PROBE_TEST_LONG=1 $(TOX_RUN) -e torch,mindspore,core,msadapter,accelerator,integrations,browser,agreement -- -m "sampled or hypothesis or reliability"
	PROBE_TEST_LONG=1 $(TOX) run -e older-mindspore
	$(MAKE) processors

processors: .tox/bootstrap/.installed
	@status=0; for setting in $(PROCESSORS); do \
	    env PROBE_TEST_LONG=1 $$setting $(TOX_RUN) -e torch,msadapter,mindspore,core,integrations,agreement -- -m rounding \
	        && said=passed || { said=failed; status=1; }; \
	    results="$$results$$setting: $$said\n"; \
	done; printf "$$results"; exit $$status

# One after the other: two builds for CUDA at once may not fit the disk.
newest: .tox/bootstrap/.installed
	$(TOX) run -e $(or $(ENV),$(NEWEST))

fuzz: .tox/bootstrap/.installed
	FUZZ_SECONDS=$(or $(SECONDS),60) $(TOX) run -e fuzz

clean:
	rm -rf .venv .venv-mindspore .venv-msadapter .tox build site *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/.installed: pyproject.toml
	$(PYTHON) -m venv .venv
	.venv/bin/python -m pip install --quiet $(TORCH)
	.venv/bin/python -m pip install --quiet --editable '.[torch]'
	touch $@

# The versions that are tested; see tox.ini.
.venv-mindspore/.installed: pyproject.toml
	$(MINDSPORE_PYTHON) -m venv .venv-mindspore
	.venv-mindspore/bin/python -m pip install --quiet mindspore==2.10.0 --editable '.[mindspore]'
	touch $@

.venv-msadapter/.installed: pyproject.toml
	$(MINDSPORE_PYTHON) -m venv .venv-msadapter
	.venv-msadapter/bin/python -m pip install --quiet --editable '.[msadapter]'
	.venv-msadapter/bin/python -m pip install --quiet --no-deps mindnlp==0.5.1
	touch $@

.tox/bootstrap/.installed:
	$(PYTHON) -m venv .tox/bootstrap
	.tox/bootstrap/bin/python -m pip install --quiet 'tox>=4.20'
	touch $@

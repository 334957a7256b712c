# CPU:   docker build -t ponder --build-arg COMMIT=$(git rev-parse --short=12 HEAD) .
# CUDA:  docker build -t ponder --build-arg BASE=pytorch/pytorch:TAG --build-arg TORCH= .    (TAG: a -runtime one)
# Run:   docker run --rm ponder solve sudoku "1... ..2. .3.. ...4"
#        docker run --rm -p 8000:8000 -e PONDER_TOKEN=... ponder serve --host 0.0.0.0
#        docker run --rm -v "$PWD:/home/ponder/work" --user "$(id -u)" ponder train sudoku-mini    (CUDA: --gpus all)
ARG BASE=python:3.12-slim
FROM ${BASE}

# Which build of PyTorch, in the words of `uv --torch-backend`: cpu, cu130, ...; nothing where the base brings its own.
ARG TORCH=cpu
ARG EXTRAS=all
ARG COMMIT=
ENV PIP_BREAK_SYSTEM_PACKAGES=1 PIP_NO_CACHE_DIR=1

# A C compiler: at first use ponder compiles its kernels for the processor it runs on.
RUN command -v cc >/dev/null || { apt-get update -q && apt-get install -y -q --no-install-recommends gcc libc6-dev \
 && rm -rf /var/lib/apt/lists/*; }

COPY . /src
RUN if [ -n "$TORCH" ]; then pip install uv && uv pip install --system --no-cache --torch-backend "$TORCH" torch; fi \
 && if [ -n "$COMMIT" ]; then echo "$COMMIT" > /src/ponder/COMMIT; fi \
 && pip install "/src[${EXTRAS}]" \
 && rm -rf /src

RUN useradd --create-home ponder && install -d -o ponder /home/ponder/work
USER ponder
WORKDIR /home/ponder/work
EXPOSE 8000
ENTRYPOINT ["ponder"]
CMD ["--help"]

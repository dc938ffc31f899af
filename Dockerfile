# How to build and run it: docs/guide.md. The campaigns table and table_warmup read the standard
# library of Python 3.11.7.
FROM python:3.11.7-slim

# A compiler for torch.compile.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ make \
    && rm -rf /var/lib/apt/lists/*

# An ordinary user, with your number, so that a run may write to a folder of yours.
ARG UID=1000
RUN useradd --create-home --uid "$UID" rope \
    && install --directory --owner rope --group rope \
        /rope_exp /rope_exp/results /home/rope/.cache
USER rope

ENV PIP_NO_CACHE_DIR=1
WORKDIR /rope_exp
COPY --chown=rope:rope . .
RUN make setup

ENV PATH=/rope_exp/.venv/bin:$PATH
ENTRYPOINT ["rope-exp"]
CMD ["--help"]

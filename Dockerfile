# How to build and run it: docs/guide.md. The campaigns table and table_warmup read the standard
# library of Python 3.11.7.
FROM python:3.11.7-slim

# A compiler for torch.compile, and git for the commit in every run's record.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*

ENV PIP_NO_CACHE_DIR=1
WORKDIR /rope_exp
COPY . .
RUN make setup

ENV PATH=/rope_exp/.venv/bin:$PATH
ENTRYPOINT ["rope-exp"]
CMD ["--help"]

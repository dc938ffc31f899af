# docker build --tag rope_exp . && docker run --gpus all --volume $PWD/results:/rope_exp/results rope_exp train pe=vo_rope
# Python 3.11.7: the campaigns on record read its standard library.
FROM python:3.11.7-slim

# A compiler for torch.compile, and git for the commit in every run's record.
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends g++ git make \
    && rm -rf /var/lib/apt/lists/*

WORKDIR /rope_exp
COPY . .
RUN make setup

ENV PATH=/rope_exp/.venv/bin:$PATH
ENTRYPOINT ["rope-exp"]
CMD ["--help"]

# soft-rdma and the example programs on Debian 13: `docker build --tag soft-rdma .`, then
# `docker run soft-rdma soft-rdma ibv_devinfo` or `docker run soft-rdma all_reduce`.
FROM debian:trixie-slim AS build
RUN apt-get update -qq \
    && apt-get install -qq --yes --no-install-recommends ca-certificates cargo gcc libc6-dev
WORKDIR /src
COPY . .
RUN cargo install --locked --quiet --root /usr/local --path soft-rdma
RUN cargo install --locked --quiet --root /usr/local --path examples

FROM debian:trixie-slim
RUN apt-get update -qq \
    && apt-get install -qq --yes --no-install-recommends ibverbs-utils perftest rdmacm-utils \
    && rm -rf /var/lib/apt/lists/*
COPY --from=build /usr/local/bin /usr/local/bin
CMD ["soft-rdma", "ibv_devinfo"]

# What scripts/quickstart does, in a container:
#   docker build --target cpu -t diptych .
#   docker build --target cuda -t diptych .          and then: docker run --gpus all ...
#   docker run --rm -v "$PWD:/pictures" diptych generate -p "a red circle" -o circle.png
# scripts/check_dockerfile holds it against scripts/setup.sh and, with --run, runs its steps without docker.

FROM debian:bookworm-slim AS cpu
WORKDIR /diptych
COPY scripts/setup.sh scripts/
RUN ["bash", "-c", ". scripts/setup.sh && diptych_setup && rm -rf /var/lib/apt/lists/*"]
COPY . .
RUN ["scripts/quickstart"]
ENV PATH=/diptych/build/release:$PATH
WORKDIR /pictures
ENTRYPOINT ["diptych"]

# nvcc comes with the image; the code is for every GPU from compute capability 8.0 up.
FROM nvidia/cuda:13.0.1-devel-ubuntu24.04 AS cuda
WORKDIR /diptych
COPY scripts/setup.sh scripts/
RUN ["bash", "-c", ". scripts/setup.sh && diptych_setup && rm -rf /var/lib/apt/lists/*"]
COPY . .
RUN ["scripts/quickstart"]
ENV PATH=/diptych/build/release:$PATH
WORKDIR /pictures
ENTRYPOINT ["diptych"]

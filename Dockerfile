# The operator and the sizer, two stages of one file. No step runs a program or needs a network: packages are fetched
# by hash on the host (requirements/*.txt) and copied in, unpacked and byte-compiled.
#
#   python -m tests.cluster_kit.images --context build/context      # fills what is copied below
#   docker build --target operator -t ghcr.io/plimsoll-dev/operator:0.1.0 .
#   docker build --target sizer    -t ghcr.io/plimsoll-dev/sizer:0.1.0 .
#
# `make images` does the same without docker and without a registry: buildah, on a Debian base from debootstrap that
# is passed as BASE. Any base works that has Python 3.11 as python3 and glibc 2.36 or newer.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS sizer
LABEL org.opencontainers.image.title="plimsoll-sizer" org.opencontainers.image.licenses="Apache-2.0"
# NVML alone (libnvidia-ml.so.1) is mounted by the container toolkit: the sizer never opens a CUDA context.
ENV NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONPATH=/opt/plimsoll/app:/opt/plimsoll/lib \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 \
    HOME=/tmp USER=plimsoll
USER 65532:65532
ENTRYPOINT ["python3", "-m", "plimsoll.sizer"]
COPY build/context/lib-sizer /opt/plimsoll/lib
COPY build/context/app /opt/plimsoll/app

FROM ${BASE} AS operator
LABEL org.opencontainers.image.title="plimsoll-operator" org.opencontainers.image.licenses="Apache-2.0"
# USER: the numeric user has no line in /etc/passwd, and kopf asks for a name.
ENV PYTHONPATH=/opt/plimsoll/app:/opt/plimsoll/lib \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 \
    HOME=/tmp USER=plimsoll
USER 65532:65532
ENTRYPOINT ["python3", "-m", "plimsoll.controller"]
COPY build/context/lib-operator /opt/plimsoll/lib
COPY build/context/app /opt/plimsoll/app

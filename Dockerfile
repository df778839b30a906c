# The operator and the sizer, two stages of one file. No step runs a program or needs a network: packages are fetched
# by hash on the host (requirements/*.txt) and copied in, unpacked and byte-compiled.
#
#   python -m tests.cluster_kit.images --context build/context      # fills what is copied below, for amd64 and arm64
#   docker buildx build --platform linux/amd64,linux/arm64 --target operator -t ghcr.io/plimsoll-dev/operator:0.1.0 .
#   docker buildx build --platform linux/amd64,linux/arm64 --target sizer    -t ghcr.io/plimsoll-dev/sizer:0.1.0 .
#
# docs/versioning.md has the arguments of a release (SOURCE_DATE_EPOCH, REVISION, SBOM, signatures).
# `make images` does the same without docker and without a registry: buildah, on a Debian base from debootstrap that
# is passed as BASE. Any base works that has Python 3.11 as python3 and glibc 2.36 or newer.
ARG BASE=docker.io/library/python:3.11-slim-bookworm

FROM ${BASE} AS sizer
# NVML alone (libnvidia-ml.so.1) is mounted by the container toolkit: the sizer never opens a CUDA context.
ENV NVIDIA_DRIVER_CAPABILITIES=utility \
    PYTHONPATH=/opt/plimsoll/app:/opt/plimsoll/lib \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 \
    HOME=/tmp USER=plimsoll
USER 65532:65532
ENTRYPOINT ["python3", "-m", "plimsoll.sizer"]
# The builder's own word for the processor: amd64 or arm64. Compiled packages differ, nothing else does.
ARG TARGETARCH
COPY build/context/${TARGETARCH}/lib-sizer /opt/plimsoll/lib
COPY build/context/app /opt/plimsoll/app
COPY build/context/${TARGETARCH}/doc-sizer /usr/share/doc/plimsoll
# After the files: another commit changes labels, and no layer.
ARG BASE VERSION=0.1.0 REVISION=local CREATED=2026-01-01T00:00:00Z
LABEL org.opencontainers.image.title="plimsoll-sizer" \
    org.opencontainers.image.description="Measures a GPU and a model's weights and computes the KV-cache token budget" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.vendor="The Plimsoll authors" \
    org.opencontainers.image.source="https://github.com/plimsoll-dev/plimsoll" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}" \
    org.opencontainers.image.base.name="${BASE}"

FROM ${BASE} AS operator
# USER: the numeric user has no line in /etc/passwd, and kopf asks for a name.
ENV PYTHONPATH=/opt/plimsoll/app:/opt/plimsoll/lib \
    PYTHONDONTWRITEBYTECODE=1 PYTHONUNBUFFERED=1 PYTHONSAFEPATH=1 \
    HOME=/tmp USER=plimsoll
USER 65532:65532
ENTRYPOINT ["python3", "-m", "plimsoll.controller"]
ARG TARGETARCH
COPY build/context/${TARGETARCH}/lib-operator /opt/plimsoll/lib
COPY build/context/app /opt/plimsoll/app
COPY build/context/${TARGETARCH}/doc-operator /usr/share/doc/plimsoll
ARG BASE VERSION=0.1.0 REVISION=local CREATED=2026-01-01T00:00:00Z
LABEL org.opencontainers.image.title="plimsoll-operator" \
    org.opencontainers.image.description="Kubernetes operator: sizes LLM servers on their own GPU, rolls the number out and verifies it" \
    org.opencontainers.image.licenses="Apache-2.0" \
    org.opencontainers.image.vendor="The Plimsoll authors" \
    org.opencontainers.image.source="https://github.com/plimsoll-dev/plimsoll" \
    org.opencontainers.image.version="${VERSION}" \
    org.opencontainers.image.revision="${REVISION}" \
    org.opencontainers.image.created="${CREATED}" \
    org.opencontainers.image.base.name="${BASE}"

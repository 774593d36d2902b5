# Stands in for vLLM's CUDA image where that cannot be pulled: it has what our layer asks of its base (pip, nvcc, users) and no vLLM.
# It proves that the layer builds. It serves nothing.
ARG DEBIAN
# hadolint ignore=DL3006
FROM ${DEBIAN}
# hadolint ignore=DL3008
RUN apt-get update -q && apt-get install -y -q --no-install-recommends python3-pip && rm -rf /var/lib/apt/lists/* \
 && rm -f /usr/lib/python3*/EXTERNALLY-MANAGED && mkdir -p /usr/local/cuda/bin && ln -s /bin/true /usr/local/cuda/bin/nvcc

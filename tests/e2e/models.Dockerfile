# The demo model beside Python, for the end-to-end steps: tests/e2e/lab/images builds it on the service image.
ARG SERVICE
# hadolint ignore=DL3006
FROM ${SERVICE}
COPY demo_model/*.gguf /models/
ENTRYPOINT []

"""Schema, tables and pages that follow from charts/glm5/values.yaml and from the service's settings.

Own code, because no generator that pip or npm installs does it: readme-generator-for-helm (npm) wants the path of every
key typed again in its comment and makes no ranges, and frigate (PyPI) makes no schema. helm-docs is a Go program.
"""

"""Reads files that describe a Ray cluster: KubeRay's manifests and Ray's cluster YAML."""

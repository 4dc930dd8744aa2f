"""Files that describe a Ray cluster: KubeRay's manifests, and Ray's own cluster YAML."""

"""Files that describe a Ray cluster: KubeRay's manifests, values of its chart, and Ray's own cluster YAML."""

"""Valid files, one of each kind."""

CLUSTER = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: trials
  labels:
    team: vision
  annotations:
    purpose: trials
spec:
  rayVersion: "2.60.0"
  enableInTreeAutoscaling: true
  autoscalerOptions:
    version: v2
    idleTimeoutSeconds: 60
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      spec:
        restartPolicy: Never
        containers:
          - name: ray-head
            image: rayproject/ray:2.60.0-py311
            env:
              - name: NVIDIA_VISIBLE_DEVICES  # of the head
                value: void
            resources:
              limits:
                cpu: "2"
                memory: 8Gi
              requests:
                cpu: "2"
                memory: 8Gi
  workerGroupSpecs:
    - groupName: l4
      replicas: 0
      minReplicas: 0
      maxReplicas: 4
      rayStartParams: {}
      labels:
        ray.io/accelerator-type: L4
      template:
        spec:
          restartPolicy: Never
          nodeSelector:
            nvidia.com/gpu.product: NVIDIA-L4
          tolerations:
            - key: nvidia.com/gpu
              operator: Exists
              effect: NoSchedule
          containers:
            - name: ray-worker
              image: rayproject/ray:2.60.0-py311-gpu
              resources:
                limits:
                  cpu: "8"
                  memory: 32Gi
                  nvidia.com/gpu: "2"
                requests:
                  cpu: "8"
                  memory: 32Gi
                  nvidia.com/gpu: "2"
    - groupName: cpu
      replicas: 0
      minReplicas: 0
      maxReplicas: 9
      rayStartParams: {}
      template:
        spec:
          restartPolicy: Never
          containers:
            - name: ray-worker
              image: rayproject/ray:2.60.0-py311
              env:
                - name: NVIDIA_VISIBLE_DEVICES
                  value: void
              resources:
                limits:
                  cpu: "4"
                  memory: 16Gi
                requests:
                  cpu: "4"
                  memory: 16Gi
"""

_OF_CLUSTER = CLUSTER.partition("spec:\n")[2]
_INDENTED = "".join(f"  {line}\n" for line in _OF_CLUSTER.splitlines())

JOB = f"""\
apiVersion: ray.io/v1
kind: RayJob
metadata:
  name: trials
spec:
  entrypoint: python tune.py
  shutdownAfterJobFinishes: true
  ttlSecondsAfterFinished: 60
  rayClusterSpec:
{_INDENTED}"""

SERVICE = f"""\
apiVersion: ray.io/v1
kind: RayService
metadata:
  name: answers
spec:
  serveConfigV2: |
    applications:
      - name: app
        import_path: app:graph
  rayClusterConfig:
{_INDENTED}"""

QUEUED = (
    JOB.replace("  name: trials\n", "  name: trials\n  labels:\n    kueue.x-k8s.io/queue-name: gpus\n", 1)
    .replace("enableInTreeAutoscaling: true", "enableInTreeAutoscaling: false")
    .replace("    autoscalerOptions:\n      version: v2\n      idleTimeoutSeconds: 60\n", "")
    .replace("        replicas: 0\n        minReplicas: 0\n        maxReplicas: 4\n", "        replicas: 4\n")
    .replace("        replicas: 0\n        minReplicas: 0\n        maxReplicas: 9\n", "        replicas: 9\n")
)

TPU = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata:
  name: slices
spec:
  rayVersion: "2.60.0"
  enableInTreeAutoscaling: true
  autoscalerOptions:
    version: v2
  headGroupSpec:
    rayStartParams:
      num-cpus: "0"
    template:
      spec:
        restartPolicy: Never
        containers:
          - name: ray-head
            image: rayproject/ray:2.60.0
            resources:
              limits:
                cpu: "2"
                memory: 8Gi
              requests:
                cpu: "2"
                memory: 8Gi
  workerGroupSpecs:
    - groupName: v6e
      replicas: 0
      minReplicas: 0
      maxReplicas: 2
      numOfHosts: 4
      labels:
        ray.io/tpu-worker-id: "0"
        ray.io/tpu-pod-type: v6e-16
      rayStartParams: {}
      template:
        spec:
          restartPolicy: Never
          nodeSelector:
            cloud.google.com/gke-tpu-accelerator: tpu-v6e-slice
            cloud.google.com/gke-tpu-topology: 4x4
          containers:
            - name: ray-worker
              image: rayproject/ray:2.60.0
              resources:
                limits:
                  cpu: "24"
                  memory: 200Gi
                  google.com/tpu: "4"
                requests:
                  cpu: "24"
                  memory: 200Gi
                  google.com/tpu: "4"
"""

LAUNCHER = """\
cluster_name: trials
max_workers: 6
idle_timeout_minutes: 2
provider:
  type: aws
  region: us-west-2
docker:
  image: rayproject/ray:2.60.0-gpu
  container_name: ray
auth:
  ssh_user: ubuntu
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 0}
    node_config:
      InstanceType: m5.large  # of the head
  l4:
    min_workers: 0
    max_workers: 4
    resources: {CPU: 4, GPU: 1}
    node_config:
      InstanceType: g6.xlarge
  cpu:
    max_workers: 2
    resources: {CPU: 16}
    node_config:
      InstanceType: m5.4xlarge
"""

SOUND = {
    "RayCluster": CLUSTER,
    "RayJob": JOB,
    "RayService": SERVICE,
    "a job that Kueue queues": QUEUED,
    "TPU slices": TPU,
    "cluster YAML": LAUNCHER,
}

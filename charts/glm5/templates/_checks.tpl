{{/*
What the schema cannot see: rules over several values. Every broken one adds a sentence and the YAML that cures it; validate.yaml
fails once with all of them.
*/}}
{{- define "glm5.checks" -}}
{{- $found := list -}}
{{- range list "glm5.checks.images" "glm5.checks.api" "glm5.checks.model" "glm5.checks.engine" "glm5.checks.times" "glm5.checks.access" "glm5.checks.doors" "glm5.checks.replicas" "glm5.checks.nodes" "glm5.checks.cluster" -}}
{{- $found = concat $found (include . $ | fromYamlArray) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{- define "glm5.checks.images" -}}
{{- if not .Values.images.registry }}
- problem: "images.registry is empty; expected the registry that your images were pushed to, by `REGISTRY=... PUSH=1 docker/build service engine-cuda`."
  paste: "images:\n  registry: registry.example.com/llm"
{{- end }}
{{- end -}}

{{- define "glm5.checks.api" -}}
{{- $k := .Values.api.key -}}
{{- $given := 0 -}}
{{- range list (ne $k.existingSecret "") (ne $k.value "") $k.disabled }}{{ if . }}{{ $given = add1 $given }}{{ end }}{{ end -}}
{{- if ne (int $given) 1 }}
- problem: "api.key: {{ $given }} of existingSecret, value and disabled are set; expected exactly one. Create a Secret with `kubectl create secret generic glm5-api-key --from-literal=api-key=$(openssl rand -hex 24)`."
  paste: "api:\n  key:\n    existingSecret: glm5-api-key\n    value: \"\"\n    disabled: false"
{{- end }}
{{- end -}}

{{- define "glm5.checks.model" -}}
{{- $m := .Values.model -}}
{{- if and .Values.staging.enabled (not $m.source) }}
- problem: "model.source is empty while staging.enabled is true; expected where the model comes from, or staging off."
  paste: "model:\n  source: hf://org/repo/folder"
{{- end }}
{{- if and (eq $m.volume.type "existingClaim") (not $m.volume.existingClaim) }}
- problem: "model.volume.existingClaim is empty for type existingClaim; expected the name of a claim."
  paste: "model:\n  volume:\n    type: existingClaim\n    existingClaim: models"
{{- end }}
{{- if and (eq $m.volume.type "hostPath") (not $m.volume.hostPath) }}
- problem: "model.volume.hostPath is empty for type hostPath; expected an absolute path."
  paste: "model:\n  volume:\n    type: hostPath\n    hostPath: /mnt/nvme/models"
{{- end }}
{{- if and (eq $m.volume.type "claim") (lt (include "glm5.gb" $m.volume.size | float64) (addf (mulf $m.sizeGB .Values.staging.keep) 1)) }}
- problem: "model.volume.size is {{ $m.volume.size }}, {{ include "glm5.gb" $m.volume.size | float64 | floor }} GB; expected at least {{ addf (mulf $m.sizeGB .Values.staging.keep) 1 | ceil }} GB for {{ .Values.staging.keep }} revisions of model.sizeGB and 1 GB to spare."
  paste: "model:\n  volume:\n    size: {{ addf (mulf $m.sizeGB (add1 .Values.staging.keep)) 1 | ceil }}G"
{{- end }}
{{- if and .Values.staging.enabled (eq .Values.staging.mode "job") (eq $m.volume.type "claim") }}
- problem: "staging.mode is job while model.volume.type is claim; expected a volume that the Job and the pod share."
  paste: "model:\n  volume:\n    type: existingClaim\n    existingClaim: models"
{{- end }}
{{- if and .Values.staging.enabled (eq .Values.staging.mode "job") .Values.staging.refresh }}
- problem: "staging.refresh is true while staging.mode is job, whose pods start as soon as a model from model.source is there, and that may be the old one; expected false, and the newer revision in model.source, such as hf://org/repo@revision/folder."
  paste: "staging:\n  refresh: false"
{{- end }}
{{- if and .Values.staging.enabled .Values.staging.aside (not (and (eq .Values.staging.mode "job") (eq (int .Values.replicas) 0))) }}
- problem: "staging.aside is true for a release that serves, so its pods would wait for a model that nobody makes current; expected false, or staging.mode job with replicas 0."
  paste: "staging:\n  aside: false"
{{- end }}
{{- if and .Values.staging.enabled .Values.staging.aside }}
{{- range $key := list "autoscaling" "dashboards" "httpRoute" "inferencePool" "ingress" "keda" "podDisruptionBudget" "podMonitor" "prometheusRule" "router" "serviceMonitor" }}
{{- if (index $.Values $key).enabled }}
- problem: "{{ $key }}.enabled is true while staging.aside is, so a release that only stages would have {{ $key }} beside the one that serves; expected false."
  paste: "{{ $key }}:\n  enabled: false"
{{- end }}
{{- end }}
{{- end }}
{{- $warmMib := include "glm5.warmLeastMib" . | int }}
{{- if and .Values.staging.enabled .Values.staging.warm (lt (include "glm5.mib" .Values.staging.memory | int) $warmMib) }}
- problem: "staging.memory is {{ .Values.staging.memory }} while staging.warm is true; expected at least {{ div $warmMib 1024 }}Gi for model.sizeGB {{ .Values.model.sizeGB }}: the page cache that a container fills counts against its memory, so what is beyond is dropped again."
  paste: "staging:\n  warm: false   # or memory: {{ div $warmMib 1024 }}Gi, which the node must have free"
{{- end }}
{{- if and .Values.staging.credentials.existingSecret .Values.staging.credentials.token }}
- problem: "staging.credentials: existingSecret and token are both set; expected one of them."
  paste: "staging:\n  credentials:\n    token: \"\""
{{- end }}
{{- if and .Values.staging.credentials.token (not (regexMatch "^(hf|https|http)://" $m.source)) }}
- problem: "staging.credentials.token is set for {{ $m.source }}; expected existingSecret, since this kind of source asks for more than a token."
  paste: "staging:\n  credentials:\n    token: \"\"\n    existingSecret: model-source"
{{- end }}
{{- end -}}

{{- define "glm5.checks.engine" -}}
{{- $e := .Values.engine -}}
{{- if and (eq .Values.profile "cpu") (ne (int $e.tensorParallelSize) 1) }}
- problem: "engine.tensorParallelSize is {{ $e.tensorParallelSize }} on profile cpu; expected 1."
  paste: "engine:\n  tensorParallelSize: 1"
{{- end }}
{{- if ne (mod (int $e.tensorParallelSize) (int $e.decodeContextParallelSize)) 0 }}
- problem: "engine.decodeContextParallelSize is {{ $e.decodeContextParallelSize }}; expected a divisor of tensorParallelSize, {{ $e.tensorParallelSize }}."
  paste: "engine:\n  decodeContextParallelSize: {{ $e.tensorParallelSize }}"
{{- end }}
{{- $own := ternary "TRITON_MLA_SPARSE" "TORCH_MLA_SPARSE" (eq .Values.profile "cuda") -}}
{{- if not (has $e.expectedBackend (list "auto" "none" $own)) }}
- problem: "engine.expectedBackend is {{ $e.expectedBackend }}; expected auto, {{ $own }} or none: vLLM's own backends attest nothing, and the pod would never turn ready."
  paste: "engine:\n  attentionBackend: {{ $e.expectedBackend }}\n  expectedBackend: none"
{{- else if and $e.attentionBackend (ne $e.attentionBackend $own) (ne $e.expectedBackend "none") }}
- problem: "engine.expectedBackend is {{ $e.expectedBackend }} while attentionBackend asks for {{ $e.attentionBackend }}, which attests nothing; expected none, or the pod would never turn ready."
  paste: "engine:\n  expectedBackend: none"
{{- end }}
{{- if lt (include "glm5.shmMib" . | int) (include "glm5.shmLeastMib" . | int) }}
- problem: "engine.shmSize is {{ $e.shmSize }}; expected at least {{ div (include "glm5.shmLeastMib" .) 1024 }}Gi for tensorParallelSize {{ $e.tensorParallelSize }}, or empty."
  paste: "engine:\n  shmSize: {{ div (include "glm5.shmLeastMib" .) 1024 }}Gi"
{{- end }}
{{- if and (eq .Values.profile "cpu") (le (include "glm5.mib" $e.memory | int) (mul 1024 (int $e.cpuKvCacheGiB) | int)) }}
- problem: "engine.memory is {{ $e.memory }}; expected more than engine.cpuKvCacheGiB, {{ $e.cpuKvCacheGiB }}Gi, which lies within it."
  paste: "engine:\n  memory: {{ add (int $e.cpuKvCacheGiB) 6 }}Gi"
{{- end }}
{{- $own := dict "--tensor-parallel-size" "engine.tensorParallelSize" "-tp" "engine.tensorParallelSize" "--decode-context-parallel-size" "engine.decodeContextParallelSize" "--max-model-len" "engine.contextLength" "--max-num-seqs" "engine.maxRequests" "--dtype" "engine.dtype" "--kv-cache-dtype" "engine.kvCacheDtype" "--attention-backend" "engine.attentionBackend" "--tool-call-parser" "engine.toolCallParser" "--reasoning-parser" "engine.reasoningParser" "--speculative-config" "engine.mtpTokens" "--gpu-memory-utilization" "engine.gpuMemoryUtilization" "--enforce-eager" "engine.enforceEager" "--served-model-name" "model.name" "--chat-template" "model.chatTemplate" "--api-key" "api.key" "--port" "service.port" "--pipeline-parallel-size" "multiNode.nodes" -}}
{{- range $e.extraArgs }}
{{- $flag := regexReplaceAll "=.*" . "" }}
{{- if hasKey $own $flag }}
- problem: "engine.extraArgs has {{ $flag }}; expected the value {{ get $own $flag }}, from which other parts of the release follow."
  paste: "engine:\n  extraArgs: []   # without {{ $flag }}"
{{- end }}
{{- end }}
{{- end -}}

{{- define "glm5.checks.times" -}}
{{- if lt (include "glm5.startupSeconds" . | int64) (include "glm5.startupLeastSeconds" . | int64) }}
- problem: "startup.budgetSeconds is {{ .Values.startup.budgetSeconds }}; expected at least {{ include "glm5.startupLeastSeconds" . }}: {{ .Values.model.sizeGB }} GB at {{ .Values.startup.storageGBps }} GB/s, half as much again, and {{ .Values.startup.compileSeconds }} s of compiling. A pod that needs longer is killed while it loads."
  paste: "startup:\n  budgetSeconds: {{ include "glm5.startupLeastSeconds" . }}"
{{- end }}
{{- end -}}

{{- define "glm5.checks.access" -}}
{{- if and .Values.ingress.enabled (not .Values.ingress.hosts) }}
- problem: "ingress.hosts is empty; expected the host names the API answers to."
  paste: "ingress:\n  hosts: [glm5.example.com]"
{{- end }}
{{- if and .Values.httpRoute.enabled (not .Values.httpRoute.parentRefs) }}
- problem: "httpRoute.parentRefs is empty; expected the gateway it attaches to."
  paste: "httpRoute:\n  parentRefs: [{name: public, namespace: gateways}]"
{{- end }}
{{- if and .Values.inferencePool.enabled (not .Values.inferencePool.endpointPicker) }}
- problem: "inferencePool.endpointPicker is empty; expected the Service of an endpoint picker."
  paste: "inferencePool:\n  endpointPicker: glm5-epp"
{{- end }}
{{- if and .Values.podMonitor.enabled .Values.serviceMonitor.enabled }}
- problem: "podMonitor and serviceMonitor are both enabled; expected one, or every sample is there twice."
  paste: "serviceMonitor:\n  enabled: false"
{{- end }}
{{- if and (or .Values.podMonitor.enabled .Values.serviceMonitor.enabled) (not .Values.metrics.enabled) }}
- problem: "a monitor is enabled while metrics.enabled is false; there is nothing to scrape."
  paste: "metrics:\n  enabled: true"
{{- end }}
{{- end -}}

{{/* Ways from outside the namespace, which the policy's default keeps shut. What to paste opens each, and the namespace as before. */}}
{{- define "glm5.checks.doors" -}}
{{- $doors := list -}}
{{- $namespaces := list -}}
{{- $comment := "" -}}
{{- if .Values.ingress.enabled -}}
{{- $doors = append $doors "ingress" -}}
{{- $namespaces = append $namespaces "ingress-nginx" -}}
{{- end -}}
{{- if or .Values.httpRoute.enabled .Values.inferencePool.enabled -}}
{{- $doors = append $doors (ternary "httpRoute" "inferencePool" .Values.httpRoute.enabled) -}}
{{- $comment = "# namespace of the gateway's pods, which may be its controller's\n" -}}
{{- /* a gateway without a namespace is in the route's own */ -}}
{{- range .Values.httpRoute.parentRefs | default (list (dict "namespace" "gateways")) -}}
{{- $namespaces = append $namespaces (.namespace | default $.Release.Namespace) -}}
{{- end -}}
{{- end -}}
{{- $peers := list (dict "podSelector" dict) -}}
{{- range uniq $namespaces -}}
{{- $peers = append $peers (dict "namespaceSelector" (dict "matchLabels" (dict "kubernetes.io/metadata.name" .))) -}}
{{- end -}}
{{- if ne .Values.service.type "ClusterIP" -}}
{{- $doors = append $doors (printf "service.type %s" .Values.service.type) -}}
{{- $peers = append $peers (dict "ipBlock" (dict "cidr" "10.0.0.0/8")) -}}
{{- end -}}
{{- if and $doors .Values.networkPolicy.enabled (not .Values.networkPolicy.apiFrom) }}
- problem: "networkPolicy.apiFrom is empty with {{ join " and " $doors }}, so that only pods of this namespace reach the API; expected the peers that requests come from: the namespace of the controller's or gateway's pods, or the addresses that a load balancer or node port sends from. What is listed replaces the default, podSelector: {}."
  paste: {{ toYaml (dict "networkPolicy" (dict "apiFrom" $peers)) | print $comment | toJson }}
{{- end }}
{{- end -}}

{{- define "glm5.checks.replicas" -}}
{{- $v := .Values -}}
{{- if and $v.router.enabled (lt (int $v.replicas) 2) }}
- problem: "router.enabled with {{ int $v.replicas }} replicas; expected at least 2, a router in front of one only adds a hop."
  paste: "router:\n  enabled: false"
{{- end }}
{{- if and $v.router.enabled (or $v.autoscaling.enabled $v.keda.enabled) }}
- problem: "router and autoscaling are both enabled; the router is told its replicas when it starts, so it would not see new ones. Use service.sessionAffinity or inferencePool with autoscaling."
  paste: "router:\n  enabled: false\nservice:\n  sessionAffinity: true"
{{- end }}
{{- if and $v.autoscaling.enabled $v.keda.enabled }}
- problem: "autoscaling and keda are both enabled; expected one, they would undo each other."
  paste: "autoscaling:\n  enabled: false"
{{- end }}
{{- range $name := list "autoscaling" "keda" }}
{{- $scaler := get $v $name }}
{{- if and $scaler.enabled (gt (int $scaler.minReplicas) (int $scaler.maxReplicas)) }}
- problem: "{{ $name }}.minReplicas is {{ $scaler.minReplicas }}; expected at most maxReplicas, {{ $scaler.maxReplicas }}."
  paste: "{{ $name }}:\n  maxReplicas: {{ $scaler.minReplicas }}"
{{- end }}
{{- end }}
{{- if and $v.keda.enabled (not $v.keda.prometheus) }}
- problem: "keda.prometheus is empty; expected the address of Prometheus."
  paste: "keda:\n  prometheus: http://prometheus.monitoring:9090"
{{- end }}
{{- end -}}

{{- define "glm5.checks.nodes" -}}
{{- if .Values.multiNode.enabled }}
{{- if eq .Values.model.volume.type "claim" }}
- problem: "multiNode with model.volume.type claim; expected a volume that every node of a replica reads."
  paste: "model:\n  volume:\n    type: existingClaim\n    existingClaim: models"
{{- end }}
{{- range $name := list "router" "autoscaling" "keda" }}
{{- if (get $.Values $name).enabled }}
- problem: "multiNode and {{ $name }} are both enabled; expected one, {{ $name }} works on the StatefulSet of single nodes."
  paste: "{{ $name }}:\n  enabled: false"
{{- end }}
{{- end }}
{{- if .Values.engine.mtpTokens }}
- problem: "engine.mtpTokens is {{ .Values.engine.mtpTokens }} with multiNode; expected 0, a draft model from the GGUF runs only where the whole model is on one node."
  paste: "engine:\n  mtpTokens: 0"
{{- end }}
{{- if eq .Values.profile "cpu" }}
- problem: "multiNode on profile cpu; expected profile cuda."
  paste: "multiNode:\n  enabled: false"
{{- end }}
{{- end }}
{{- end -}}

{{- define "glm5.checks.cluster" -}}
{{- if and .Values.gpu.dra.enabled (not (include "glm5.hasDra" .)) }}
- problem: "gpu.dra.enabled on Kubernetes {{ .Capabilities.KubeVersion.Version }}; expected 1.34 or newer."
  paste: "gpu:\n  dra:\n    enabled: false"
{{- end }}
{{- if and (eq .Values.model.volume.type "claim") (not .Values.model.volume.keep) (not (include "glm5.hasClaimRetention" .)) }}
- problem: "model.volume.keep is false on Kubernetes {{ .Capabilities.KubeVersion.Version }}; expected 1.27 or newer for claims to go with the release. Delete the claim by hand instead."
  paste: "model:\n  volume:\n    keep: true"
{{- end }}
{{- $name := include "glm5.fullname" . -}}
{{- $there := lookup "apps/v1" "StatefulSet" .Release.Namespace $name -}}
{{- if and $there (eq .Values.model.volume.type "claim") }}
{{- range $there.spec.volumeClaimTemplates }}
{{- if not (include "glm5.sameSize" (list .spec.resources.requests.storage $.Values.model.volume.size)) }}
- problem: "model.volume.size is {{ $.Values.model.volume.size }} while the claims have {{ .spec.resources.requests.storage }}; a StatefulSet cannot change it. Enlarge each claim with `kubectl -n {{ $.Release.Namespace }} patch pvc model-{{ $name }}-0 -p '{\"spec\":{\"resources\":{\"requests\":{\"storage\":\"{{ $.Values.model.volume.size }}\"}}}}'`, then `kubectl -n {{ $.Release.Namespace }} delete statefulset {{ $name }} --cascade=orphan` and upgrade again; the pod goes on serving."
  paste: "model:\n  volume:\n    size: {{ .spec.resources.requests.storage }}"
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{- define "glm5.checks.replicas" -}}
{{- $v := .Values -}}
{{- if and $v.router.enabled (lt (include "glm5.replicasOr1" . | int) 2) }}
- problem: "router.enabled with {{ include "glm5.replicasOr1" . }} replicas; expected at least 2. A router in front of one replica only adds a hop."
  paste: "router:\n  enabled: false"
{{- end }}
{{- if and $v.router.enabled (or $v.autoscaling.enabled $v.keda.enabled) }}
- problem: "router and autoscaling are both enabled; expected one of them. The router reads the list of replicas only when it starts, so it would not see new ones. Use service.sessionAffinity or inferencePool with autoscaling."
  paste: "router:\n  enabled: false\nservice:\n  sessionAffinity: true"
{{- end }}
{{- if and $v.autoscaling.enabled $v.keda.enabled }}
- problem: "autoscaling and keda are both enabled; expected one. They would undo each other."
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
- problem: "multiNode with model.volume.type claim; expected a volume that every node of a replica reads, such as existingClaim."
  paste: "model:\n  volume:\n    type: existingClaim\n    existingClaim: models"
{{- end }}
{{- range $name := list "router" "autoscaling" "keda" }}
{{- if (get $.Values $name).enabled }}
- problem: "multiNode and {{ $name }} are both enabled; expected one. {{ $name }} works only with the StatefulSet of single nodes."
  paste: "{{ $name }}:\n  enabled: false"
{{- end }}
{{- end }}
{{- if gt (int .Values.engine.mtpTokens) 0 }}
- problem: "engine.mtpTokens is {{ .Values.engine.mtpTokens }} with multiNode; expected 0. A draft model from the GGUF runs only where the whole model is on one node."
  paste: "engine:\n  mtpTokens: 0"
{{- end }}
{{- if eq .Values.profile "cpu" }}
- problem: "multiNode on profile cpu; expected profile cuda."
  paste: "multiNode:\n  enabled: false"
{{- end }}
{{- end }}
{{- end -}}

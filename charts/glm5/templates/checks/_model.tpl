{{- define "glm5.checks.model" -}}
{{- $m := .Values.model -}}
{{- $keep := include "glm5.setting" (list . "staging.keep") | int -}}
{{- $isJob := and .Values.staging.enabled (eq .Values.staging.mode "job") -}}
{{- $isAside := eq (include "glm5.setting" (list . "staging.aside")) "true" -}}
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
{{- if and (eq $m.volume.type "claim") (lt (include "glm5.gb" $m.volume.size | float64) (addf (mulf $m.sizeGB $keep) 1)) }}
- problem: "model.volume.size is {{ $m.volume.size }}, {{ include "glm5.gb" $m.volume.size | float64 | floor }} GB; expected at least {{ addf (mulf $m.sizeGB $keep) 1 | ceil }} GB for {{ $keep }} revisions of model.sizeGB and 1 GB to spare."
  paste: "model:\n  volume:\n    size: {{ addf (mulf $m.sizeGB (add1 $keep)) 1 | ceil }}G"
{{- end }}
{{- if and $isJob (eq $m.volume.type "claim") }}
- problem: "staging.mode is job while model.volume.type is claim; expected a volume that the Job and the pod share."
  paste: "model:\n  volume:\n    type: existingClaim\n    existingClaim: models"
{{- end }}
{{- if and $isJob (eq (include "glm5.setting" (list . "staging.refresh")) "true") }}
- problem: "settings.staging.refresh is true while staging.mode is job; expected false. The pods start as soon as a model from model.source is there, and that may be the old one. Name the newer revision in model.source instead, such as hf://org/repo@revision/folder."
  paste: "settings:\n  staging:\n    refresh: false"
{{- end }}
{{- if and .Values.staging.enabled $isAside (not (and $isJob (eq (include "glm5.replicasOr1" .) "0"))) }}
- problem: "settings.staging.aside is true for a release that serves; expected false, or staging.mode job with replicas 0. The pods would wait for a model that never becomes current."
  paste: "settings:\n  staging:\n    aside: false"
{{- end }}
{{- if and .Values.staging.enabled $isAside }}
{{- range $key := list "autoscaling" "dashboards" "httpRoute" "inferencePool" "ingress" "keda" "podDisruptionBudget" "podMonitor" "prometheusRule" "router" "serviceMonitor" }}
{{- if (index $.Values $key).enabled }}
- problem: "{{ $key }}.enabled is true while settings.staging.aside is true; expected false. This release only stages. {{ $key }} belongs to the release that serves."
  paste: "{{ $key }}:\n  enabled: false"
{{- end }}
{{- end }}
{{- end }}
{{- $warmMib := include "glm5.warmLeastMib" . | int }}
{{- if and .Values.staging.enabled .Values.staging.warm (lt (include "glm5.mib" .Values.staging.memory | int) $warmMib) }}
- problem: "staging.memory is {{ .Values.staging.memory }} while staging.warm is true; expected at least {{ div $warmMib 1024 }}Gi for model.sizeGB {{ .Values.model.sizeGB }}. The page cache that a container fills counts against its memory, and the kernel drops what exceeds it."
  paste: "staging:\n  warm: false   # or memory: {{ div $warmMib 1024 }}Gi, which the node must have free"
{{- end }}
{{- if and .Values.staging.credentials.existingSecret .Values.staging.credentials.token }}
- problem: "staging.credentials: existingSecret and token are both set; expected one of them."
  paste: "staging:\n  credentials:\n    token: \"\""
{{- end }}
{{- if and .Values.staging.credentials.token (not (regexMatch "^(hf|https|http)://" $m.source)) }}
- problem: "staging.credentials.token is set for a source of {{ regexFind "^[a-z0-9]+" $m.source }}://; expected existingSecret, because this kind of source needs more than a token."
  paste: "staging:\n  credentials:\n    token: \"\"\n    existingSecret: model-source"
{{- end }}
{{- end -}}

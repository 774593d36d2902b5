{{/* Init containers in their order: native sidecars first, so that they see the staging. */}}
{{- define "glm5.initContainers" -}}
{{- if include "glm5.hasNativeSidecars" . }}
{{- include "glm5.helpers" . }}
{{- end }}
{{- if .Values.staging.enabled }}
- {{ include (ternary "glm5.stage" "glm5.waitForModel" (eq .Values.staging.mode "init")) . | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{- define "glm5.helpers" -}}
{{- if .Values.metrics.enabled }}
- {{ include "glm5.metrics" . | nindent 2 | trim }}
{{- end }}
{{- if .Values.events.enabled }}
- {{ include "glm5.events" . | nindent 2 | trim }}
{{- end }}
{{- end -}}

{{- define "glm5.affinity" -}}
{{- $given := .Values.affinity | default dict -}}
{{- if and (gt (include "glm5.gpus" . | int) 0) .Values.gpu.products -}}
{{- $products := dict "key" "nvidia.com/gpu.product" "operator" "In" "values" .Values.gpu.products -}}
{{- $terms := list (dict "matchExpressions" (list $products)) -}}
{{- $own := dict "nodeAffinity" (dict "requiredDuringSchedulingIgnoredDuringExecution" (dict "nodeSelectorTerms" $terms)) -}}
{{- toYaml (merge (deepCopy $given) (ternary dict $own (hasKey $given "nodeAffinity"))) -}}
{{- else -}}
{{- toYaml $given -}}
{{- end -}}
{{- end -}}

{{- define "glm5.modelVolume" -}}
{{- if eq .Values.model.volume.type "existingClaim" }}
- name: model
  persistentVolumeClaim: {claimName: {{ .Values.model.volume.existingClaim | quote }}}
{{- else if eq .Values.model.volume.type "hostPath" }}
- name: model
  hostPath: {path: {{ .Values.model.volume.hostPath | quote }}, type: Directory}
{{- end }}
{{- end -}}

{{- define "glm5.commonVolumes" -}}
- name: config
  configMap: {name: {{ include "glm5.fullname" . | quote }}}
- name: run
  emptyDir: {sizeLimit: 64Mi}
- name: tmp
  emptyDir: {sizeLimit: 10Gi}
{{- end -}}

{{/* What the container that stages mounts. */}}
{{- define "glm5.sourceVolumes" -}}
{{- if and (include "glm5.sourceSecret" .) (not (hasPrefix "s3://" .Values.model.source)) }}
- name: source-secret
  secret: {secretName: {{ include "glm5.sourceSecret" . | quote }}, defaultMode: 0440}
{{- end }}
{{- with .Values.staging.caConfigMap }}
- name: source-ca
  configMap: {name: {{ . | quote }}}
{{- end }}
{{- end -}}

{{/* The pod that serves. Takes (list $ args is-leader). */}}
{{- define "glm5.podSpec" -}}
{{- $ := index . 0 -}}
{{- with include "glm5.pullSecrets" $ }}
{{- . | nindent 0 }}
{{- end }}
serviceAccountName: {{ include "glm5.serviceAccount" $ | quote }}
automountServiceAccountToken: false
# variables of Services named glm5* would be taken for settings
enableServiceLinks: false
terminationGracePeriodSeconds: {{ include "glm5.graceSeconds" $ }}
securityContext: {{- include "glm5.podSecurity" $ | nindent 2 }}
{{- with $.Values.priorityClass }}
priorityClassName: {{ . | quote }}
{{- end }}
{{- if gt (include "glm5.gpus" $ | int) 0 }}
{{- with $.Values.gpu.runtimeClass }}
runtimeClassName: {{ . | quote }}
{{- end }}
{{- if $.Values.gpu.dra.enabled }}
resourceClaims:
  - {name: gpus, resourceClaimTemplateName: {{ include "glm5.fullname" $ }}-gpus}
{{- end }}
{{- end }}
{{- with $.Values.nodeSelector }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $.Values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "glm5.affinity" $ | fromYaml }}
affinity: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with include "glm5.initContainers" $ | trim }}
initContainers:
  {{- . | nindent 2 }}
{{- end }}
containers:
  - {{ include "glm5.engine" . | nindent 4 | trim }}
  {{- if not (include "glm5.hasNativeSidecars" $) }}
  {{- include "glm5.helpers" $ | trim | nindent 2 }}
  {{- end }}
volumes:
  {{- include "glm5.commonVolumes" $ | nindent 2 }}
  {{- if and $.Values.staging.enabled (eq $.Values.staging.mode "init") }}
  {{- with include "glm5.sourceVolumes" $ | trim }}
  {{- . | nindent 2 }}
  {{- end }}
  {{- end }}
  {{- if $.Values.events.enabled }}
  # mounted into that one container only
  - name: token
    projected:
      sources:
        - serviceAccountToken: {path: token, expirationSeconds: 3600}
        - configMap: {name: kube-root-ca.crt, items: [{key: ca.crt, path: ca.crt}]}
        - downwardAPI: {items: [{path: namespace, fieldRef: {fieldPath: metadata.namespace}}]}
  {{- end }}
  - name: shm
    emptyDir: {medium: Memory, sizeLimit: {{ include "glm5.shmMib" $ }}Mi}
  {{- if not $.Values.cache.persistent }}
  - name: cache
    emptyDir: {}
  {{- end }}
  {{- if $.Values.engine.hugepages2Mi }}
  - name: hugepages
    emptyDir: {medium: HugePages-2Mi}
  {{- end }}
  {{- with include "glm5.modelVolume" $ | trim }}
  {{- . | nindent 2 }}
  {{- end }}
{{- end -}}

{{/*
Labels of a pod: no version among them, or a chart that only changed its notes would load 402 GB again. Those that are asked for are
for the pods that serve. Takes (list $ component).
*/}}
{{- define "glm5.podLabels" -}}
{{- $v := (index . 0).Values -}}
{{- $asked := ternary ($v.podLabels | default dict) dict (eq (index . 1) "engine") -}}
{{- toYaml (merge (include "glm5.selector" . | fromYaml) $asked ($v.commonLabels | default dict)) -}}
{{- end -}}

{{/* Annotations that restart the pod when what it was started with changes. */}}
{{- define "glm5.podAnnotations" -}}
{{- $own := dict "glm5/config-sha256" (include "glm5.configmapData" . | sha256sum) "kubectl.kubernetes.io/default-container" "engine" -}}
{{- if .Values.api.key.value }}{{ $_ := set $own "glm5/api-key-generation" (include "glm5.apiKeyGeneration" .) }}{{ end -}}
{{- toYaml (merge $own (.Values.podAnnotations | default dict)) -}}
{{- end -}}

{{- define "glm5.configmapData" -}}
glm5.yaml: |
  {{- include "glm5.config" . | nindent 2 }}
{{- with .Values.model.chatTemplate }}
chat_template.jinja: {{ . | toJson }}
{{- end }}
{{- end -}}

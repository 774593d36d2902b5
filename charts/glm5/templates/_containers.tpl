{{/* The containers of a pod. Each is a list item without its "- ". */}}

{{- define "glm5.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: {{ .Values.security.readOnlyRootFilesystem }}
capabilities: {drop: [ALL]}
{{- end -}}

{{- define "glm5.podSecurity" -}}
runAsNonRoot: true
runAsUser: {{ int64 .Values.security.runAsUser }}
runAsGroup: {{ int64 .Values.security.fsGroup }}
fsGroup: {{ int64 .Values.security.fsGroup }}
# changing the owner of every file again at each start would read the whole directory tree
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end -}}

{{/* What every container reads and writes. HOME is a folder that can be written: CUDA and others keep files under it. */}}
{{- define "glm5.commonEnv" -}}
- {name: GLM5_CONFIG, value: /etc/glm5/glm5.yaml}
- {name: HOME, value: /tmp}
{{- end -}}

{{- define "glm5.commonMounts" -}}
- {name: config, mountPath: /etc/glm5, readOnly: true}
- {name: run, mountPath: /run/glm5}
- {name: tmp, mountPath: /tmp}
{{- end -}}

{{/* Brings the model. */}}
{{- define "glm5.stage" -}}
name: stage
image: {{ include "glm5.image.service" . | quote }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
args: [stage{{ if .Values.staging.warm }}, --warm{{ end }}]
env:
  {{- include "glm5.commonEnv" . | nindent 2 }}
  {{- if and (hasPrefix "s3://" .Values.model.source) (include "glm5.sourceSecret" .) }}
  {{- range $name, $optional := dict "AWS_ACCESS_KEY_ID" false "AWS_SECRET_ACCESS_KEY" false "AWS_SESSION_TOKEN" true }}
  - name: {{ $name }}
    valueFrom: {secretKeyRef: {name: {{ include "glm5.sourceSecret" $ | quote }}, key: {{ $name }}, optional: {{ $optional }}}}
  {{- end }}
  {{- end }}
  {{- with .Values.staging.proxySecret }}
  - name: GLM5_STAGING__HTTP__PROXY
    valueFrom: {secretKeyRef: {name: {{ . | quote }}, key: proxy}}
  {{- end }}
resources: {{- include "glm5.equalResources" (list .Values.staging.cpus .Values.staging.memory) | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext: {{- include "glm5.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "glm5.commonMounts" . | nindent 2 }}
  - {name: model, mountPath: /models}
  {{- if and (include "glm5.sourceSecret" .) (not (hasPrefix "s3://" .Values.model.source)) }}
  - {name: source-secret, mountPath: /etc/glm5-source, readOnly: true}
  {{- end }}
  {{- if .Values.staging.caConfigMap }}
  - {name: source-ca, mountPath: /etc/glm5-ca, readOnly: true}
  {{- end }}
{{- end -}}

{{/* Waits for what the staging Job publishes: the model of these values, not one that was there before. Asks no source. */}}
{{- define "glm5.waitForModel" -}}
name: wait-for-model
image: {{ include "glm5.image.service" . | quote }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
args: [stage, --wait]
env:
  {{- include "glm5.commonEnv" . | nindent 2 }}
resources: {{- include "glm5.equalResources" (list 0.1 "128Mi") | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext: {{- include "glm5.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "glm5.commonMounts" . | nindent 2 }}
  - {name: model, mountPath: /models, readOnly: true}
{{- end -}}

{{/* Request and limit alike, so that the pod is of class Guaranteed. Takes (list cpus memory). */}}
{{- define "glm5.equalResources" -}}
requests: {cpu: {{ index . 0 | toString | quote }}, memory: {{ index . 1 | quote }}}
limits: {cpu: {{ index . 0 | toString | quote }}, memory: {{ index . 1 | quote }}}
{{- end -}}

{{- define "glm5.engineResources" -}}
{{- $amounts := dict "cpu" (toString .Values.engine.cpus) "memory" (include "glm5.engineMemory" .) -}}
{{- if and (gt (include "glm5.gpus" . | int) 0) (not .Values.gpu.dra.enabled) -}}
{{- /* text, not a number: old servers refuse a number under server-side apply */ -}}
{{- $_ := set $amounts .Values.gpu.resourceName (include "glm5.gpus" .) -}}
{{- end -}}
{{- with .Values.engine.hugepages2Mi }}{{ $_ := set $amounts "hugepages-2Mi" . }}{{ end -}}
requests: {{- toYaml $amounts | nindent 2 }}
limits: {{- toYaml $amounts | nindent 2 }}
{{- if and (gt (include "glm5.gpus" . | int) 0) .Values.gpu.dra.enabled }}
claims: [{name: gpus}]
{{- end }}
{{- end -}}

{{/* Serves. Takes (list $ args is-leader). */}}
{{- define "glm5.engine" -}}
{{- $ := index . 0 -}}
name: engine
image: {{ include "glm5.image.engine" $ | quote }}
imagePullPolicy: {{ $.Values.images.pullPolicy }}
args: {{ index . 1 | toJson }}
ports:
  - {name: http, containerPort: 8000, protocol: TCP}
  - {name: health, containerPort: 8081, protocol: TCP}
env:
  {{- include "glm5.commonEnv" $ | nindent 2 }}
  - {name: XDG_CACHE_HOME, value: {{ include "glm5.cacheDir" $ }}}
  {{- if not $.Values.api.key.disabled }}
  - name: GLM5_ENGINE__API_KEY
    valueFrom: {secretKeyRef: {{ include "glm5.apiKeyRef" $ }}}
  {{- end }}
  {{- with $.Values.engine.extraEnv }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- if index . 2 }}
startupProbe:
  httpGet: {path: /startupz, port: health}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: {{ div (add (include "glm5.startupSeconds" $) 9) 10 }}
readinessProbe:
  httpGet: {path: /readyz, port: health}
  periodSeconds: 5
  timeoutSeconds: 5
  failureThreshold: 1
{{- end }}
livenessProbe:
  httpGet: {path: /livez, port: health}
  {{- if not (index . 2) }}
  initialDelaySeconds: 60
  {{- end }}
  periodSeconds: 10
  timeoutSeconds: 5
  failureThreshold: 3
resources: {{- include "glm5.engineResources" $ | nindent 2 }}
terminationMessagePolicy: FallbackToLogsOnError
securityContext: {{- include "glm5.containerSecurity" $ | nindent 2 }}
volumeMounts:
  {{- include "glm5.commonMounts" $ | nindent 2 }}
  # written to as well: a lease keeps the served revision from being pruned, and compiled kernels lie beside it
  - {name: model, mountPath: /models}
  - {name: shm, mountPath: /dev/shm}
  {{- if not $.Values.cache.persistent }}
  - {name: cache, mountPath: /var/cache/glm5}
  {{- end }}
  {{- if $.Values.engine.hugepages2Mi }}
  - {name: hugepages, mountPath: /dev/hugepages}
  {{- end }}
{{- end -}}

{{/* Serves /metrics. */}}
{{- define "glm5.metrics" -}}
name: metrics
image: {{ include "glm5.image.service" . | quote }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
args: [sidecar]
ports:
  - {name: metrics, containerPort: 9400, protocol: TCP}
env:
  {{- include "glm5.commonEnv" . | nindent 2 }}
{{- include "glm5.helperLifecycle" . }}
resources: {{- include "glm5.equalResources" (list .Values.metrics.cpus .Values.metrics.memory) | nindent 2 }}
securityContext: {{- include "glm5.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "glm5.commonMounts" . | nindent 2 }}
  - {name: model, mountPath: /models, readOnly: true}
{{- end -}}

{{/* Tells phase and staging changes as Events. */}}
{{- define "glm5.events" -}}
name: events
image: {{ include "glm5.image.service" . | quote }}
imagePullPolicy: {{ .Values.images.pullPolicy }}
args: [cluster, events]
env:
  {{- include "glm5.commonEnv" . | nindent 2 }}
  - name: POD_NAME
    valueFrom: {fieldRef: {fieldPath: metadata.name}}
  - name: POD_NAMESPACE
    valueFrom: {fieldRef: {fieldPath: metadata.namespace}}
{{- include "glm5.helperLifecycle" . }}
resources: {{- include "glm5.equalResources" (list 0.1 "128Mi") | nindent 2 }}
securityContext: {{- include "glm5.containerSecurity" . | nindent 2 }}
volumeMounts:
  {{- include "glm5.commonMounts" . | nindent 2 }}
  - {name: token, mountPath: /var/run/secrets/kubernetes.io/serviceaccount, readOnly: true}
{{- end -}}

{{/*
How a helper outlives the engine's draining: a native sidecar ends after it by itself; a plain container waits until the engine
says that it has stopped, at most as long as draining may take. An engine that never started says nothing, and nobody waits for it.
*/}}
{{- define "glm5.helperLifecycle" }}
{{- if include "glm5.hasNativeSidecars" . }}
restartPolicy: Always
{{- else }}
lifecycle:
  preStop:
    exec:
      command:
        - sh
        - -c
        - >-
          n=0;
          until [ ! -e /run/glm5/engine.json ] || grep -Eq '"phase": ?"(stopped|failed)"' /run/glm5/engine.json || [ $n -ge {{ sub (include "glm5.graceSeconds" .) 10 }} ];
          do n=$((n+1)); sleep 1; done
{{- end }}
{{- end -}}

{{/* Name of the release's objects. */}}
{{- define "glm5.fullname" -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- if .Values.fullnameOverride -}}{{ .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains $name .Release.Name -}}{{ .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else -}}{{ printf "%s-%s" .Release.Name $name | trunc 50 | trimSuffix "-" }}
{{- end -}}
{{- end -}}

{{/* Labels that select; they never change within a release. Takes (list $ component). */}}
{{- define "glm5.selector" -}}
app.kubernetes.io/name: {{ default (index . 0).Chart.Name (index . 0).Values.nameOverride }}
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end -}}

{{/* All labels. Takes (list $ component). */}}
{{- define "glm5.labels" -}}
{{ include "glm5.selector" . }}
app.kubernetes.io/version: {{ (index . 0).Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ (index . 0).Release.Service }}
helm.sh/chart: {{ (index . 0).Chart.Name }}-{{ (index . 0).Chart.Version | replace "+" "_" }}
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "glm5.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "glm5.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end -}}

{{/* Secret that holds the API key, and the key within it. */}}
{{- define "glm5.apiKeyRef" -}}
name: {{ .Values.api.key.existingSecret | default (printf "%s-api-key" (include "glm5.fullname" .)) }}
key: {{ ternary .Values.api.key.secretKey "api-key" (ne .Values.api.key.existingSecret "") }}
{{- end -}}

{{/* Secret with what the source asks for; empty if it asks for nothing. */}}
{{- define "glm5.sourceSecret" -}}
{{- with .Values.staging.credentials -}}
{{- .existingSecret | default (ternary (printf "%s-source" (include "glm5.fullname" $)) "" (ne .token "")) -}}
{{- end -}}
{{- end -}}

{{/* A whole image reference; a digest wins over a tag. Takes (list $ image default-tag). */}}
{{- define "glm5.image" -}}
{{- $image := index . 1 -}}
{{- $name := printf "%s/%s" (trimSuffix "/" (index . 0).Values.images.registry) $image.repository -}}
{{- if $image.digest -}}{{ $name }}@{{ $image.digest }}{{- else -}}{{ $name }}:{{ $image.tag | default (index . 2) }}{{- end -}}
{{- end -}}

{{- define "glm5.image.engine" -}}
{{ include "glm5.image" (list . .Values.images.engine (printf "%s-%s" .Chart.AppVersion .Values.profile)) }}
{{- end -}}

{{- define "glm5.image.service" -}}
{{ include "glm5.image" (list . .Values.images.service .Chart.AppVersion) }}
{{- end -}}

{{- define "glm5.pullSecrets" -}}
{{- with .Values.images.pullSecrets -}}
imagePullSecrets:
{{- range . }}
  - name: {{ . }}
{{- end }}
{{- end -}}
{{- end -}}

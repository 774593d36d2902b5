{{/* Name of the release's objects. A Service must bear it, so `glm5.checks.names` refuses what is no DNS label. */}}
{{- define "glm5.fullname" -}}
{{- $name := .Values.nameOverride | default .Chart.Name -}}
{{- $full := printf "%s-%s" .Release.Name $name -}}
{{- if .Values.fullnameOverride -}}{{ $full = .Values.fullnameOverride }}
{{- else if contains $name .Release.Name -}}{{ $full = .Release.Name }}
{{- end -}}
{{- $full | trunc 50 | trimAll "-" -}}
{{- end -}}

{{/* A text with each $ doubled, where Kubernetes would take $(NAME) for a variable: in values of env and in args. */}}
{{- define "glm5.literal" -}}{{ . | replace "$" "$$" }}{{- end -}}

{{/* Labels that select; they never change within a release. Takes (list $ component). */}}
{{- define "glm5.selector" -}}
{{- $ := index . 0 -}}
{{- $name := $.Values.nameOverride | default $.Chart.Name -}}
{{- toYaml (dict "app.kubernetes.io/name" $name "app.kubernetes.io/instance" $.Release.Name "app.kubernetes.io/component" (index . 1)) -}}
{{- end -}}

{{/* All labels. Takes (list $ component), or (list $ component labels-of-the-object), which win over commonLabels. */}}
{{- define "glm5.labels" -}}
{{- $ := index . 0 -}}
{{- $more := dict -}}
{{- if gt (len .) 2 }}{{ $more = index . 2 | default dict }}{{ end -}}
{{- $about := dict
  "app.kubernetes.io/version" $.Chart.AppVersion
  "app.kubernetes.io/managed-by" $.Release.Service
  "helm.sh/chart" (printf "%s-%s" $.Chart.Name ($.Chart.Version | replace "+" "_"))
-}}
{{- toYaml (merge (include "glm5.selector" . | fromYaml) $about $more ($.Values.commonLabels | default dict)) -}}
{{- end -}}

{{- define "glm5.serviceAccount" -}}
{{ .Values.serviceAccount.name | default (ternary (include "glm5.fullname" .) "default" .Values.serviceAccount.create) }}
{{- end -}}

{{/* Name of the Secret that is made of api.key.value. Not the name that the documentation gives to yours. */}}
{{- define "glm5.ownKeySecret" -}}{{ include "glm5.fullname" . }}-api-key-value{{- end -}}

{{- define "glm5.ownSourceSecret" -}}{{ include "glm5.fullname" . }}-source{{- end -}}

{{/* Secret that holds the API key, and the key within it, as JSON. */}}
{{- define "glm5.apiKeyRef" -}}
{{- $k := .Values.api.key -}}
{{- dict "name" ($k.existingSecret | default (include "glm5.ownKeySecret" .)) "key" (ternary $k.secretKey "api-key" (not (empty $k.existingSecret))) | toJson -}}
{{- end -}}

{{/* Secret with what the source asks for; empty if it asks for nothing. */}}
{{- define "glm5.sourceSecret" -}}
{{- with .Values.staging.credentials -}}
{{- .existingSecret | default (ternary (include "glm5.ownSourceSecret" $) "" (not (empty .token))) -}}
{{- end -}}
{{- end -}}

{{/*
How often the text of a Secret of this release has changed, from 1. It stands in the Secret and in the pods that read it, so that they
restart with it. A hash would tell the text to whoever can read pods and guess. A render that cannot ask the cluster says 1.
Takes (list $ name-of-the-secret key text).
*/}}
{{- define "glm5.secretGeneration" -}}
{{- $there := lookup "v1" "Secret" (index . 0).Release.Namespace (index . 1) -}}
{{- $before := dig "metadata" "annotations" "glm5/generation" "1" $there | int -}}
{{- $is := dig "data" (index . 2) "" $there | b64dec -}}
{{- ternary $before (add1 $before) (or (empty $there) (eq $is (index . 3))) -}}
{{- end -}}

{{- define "glm5.apiKeyGeneration" -}}
{{ include "glm5.secretGeneration" (list . (include "glm5.ownKeySecret" .) "api-key" .Values.api.key.value) }}
{{- end -}}

{{- define "glm5.sourceTokenGeneration" -}}
{{ include "glm5.secretGeneration" (list . (include "glm5.ownSourceSecret" .) "token" .Values.staging.credentials.token) }}
{{- end -}}

{{/* A whole image reference; a digest wins over a tag. Takes (list $ image default-tag). */}}
{{- define "glm5.image" -}}
{{- $image := index . 1 -}}
{{- $name := printf "%s/%s" ((index . 0).Values.images.registry | default "") $image.repository -}}
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
  - name: {{ . | quote }}
{{- end }}
{{- end -}}
{{- end -}}

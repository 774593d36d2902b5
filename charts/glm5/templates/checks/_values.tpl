{{- define "glm5.checks.images" -}}
{{- if not .Values.images.registry }}
- problem: "images.registry is empty; expected the registry with your images. Push them with `REGISTRY=... PUSH=1 docker/build service engine-cuda`."
  paste: "images:\n  registry: registry.example.com/llm"
{{- end }}
{{- end -}}

{{- define "glm5.checks.names" -}}
{{- $name := include "glm5.fullname" . -}}
{{- if not (regexMatch "^[a-z]([-a-z0-9]*[a-z0-9])?$" $name) }}
{{- $cure := printf "glm5-%s" (regexReplaceAll "[^a-z0-9]+" (lower .Release.Name) "-") | trunc 50 | trimAll "-" }}
{{- $said := printf "the objects of release %s would be named %s, which is no valid name of a Service; expected lower-case letters, digits and dashes, beginning with a letter. Set fullnameOverride." (toJson .Release.Name) (toJson $name) }}
{{- include "glm5.problem" (list $said (dict "fullnameOverride" $cure)) }}
{{- end }}
{{- end -}}

{{/* Numbers that are given as text. The schema applies ranges to numbers only. */}}
{{- define "glm5.checks.numbers" -}}
{{- $at := dict -}}
{{- $limits := dict "minimum" "at least" "maximum" "at most" "exclusiveMinimum" "more than" "exclusiveMaximum" "less than" -}}
{{- range $path, $number := (include "glm5.file" (list . "tables.json") | fromJson).numbers -}}
{{- include "glm5.at" (list $.Values $path $at) -}}
{{- if kindIs "string" $at.value }}
{{- $is := float64 $at.value }}
{{- range $name, $words := $limits }}
{{- if hasKey $number $name }}
{{- $limit := index $number $name }}
{{- if or (and (eq $name "minimum") (lt $is $limit)) (and (eq $name "maximum") (gt $is $limit)) (and (eq $name "exclusiveMinimum") (le $is $limit)) (and (eq $name "exclusiveMaximum") (ge $is $limit)) }}
{{- $cure := dict }}
{{- include "glm5.put" (list $cure $path (ternary (int64 $limit) 1 (eq $name "minimum"))) }}
{{- include "glm5.problem" (list (printf "%s is %s; expected %s %v." $path $at.value $words $limit) $cure) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* Labels and annotations that the chart sets. A second one of the same name would be refused, or would replace it. */}}
{{- define "glm5.checks.labels" -}}
{{- $labels := list "app.kubernetes.io/name" "app.kubernetes.io/instance" "app.kubernetes.io/component" "app.kubernetes.io/version" "app.kubernetes.io/managed-by" "helm.sh/chart" -}}
{{- $annotations := list "glm5/config-sha256" "glm5/api-key-generation" "kubectl.kubernetes.io/default-container" -}}
{{- $places := dict "commonLabels" $labels "podLabels" $labels "podMonitor.labels" $labels "serviceMonitor.labels" $labels "prometheusRule.labels" $labels "dashboards.labels" $labels "podAnnotations" $annotations -}}
{{- $at := dict -}}
{{- range $path, $own := $places -}}
{{- include "glm5.at" (list $.Values $path $at) -}}
{{- range $name, $_ := $at.value | default dict }}
{{- if has $name $own }}
{{- $cure := dict }}
{{- include "glm5.put" (list $cure $path (dict $name nil)) }}
{{- include "glm5.problem" (list (printf "%s sets %s, which the chart sets itself; expected another name." $path $name) $cure) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}

{{/* The engine's environment: each value is text, each name comes once, and none is the chart's own. */}}
{{- define "glm5.checks.env" -}}
{{- $seen := dict -}}
{{- range .Values.engine.extraEnv -}}
{{- $cure := dict "engine" (dict "extraEnv" list) }}
{{- if has .name (list "HOME" "XDG_CACHE_HOME") }}
{{- include "glm5.problem" (list (printf "engine.extraEnv sets %s, which the chart sets itself; expected another name." .name) $cure) }}
{{- else if and (hasPrefix "GLM5_" .name) (ne .name "GLM5_TRACEBACK") }}
{{- include "glm5.problem" (list (printf "engine.extraEnv sets %s, a setting of the service; expected it under settings, or in the chart's value for it." .name) $cure) }}
{{- else if eq .name "VLLM_API_KEY" }}
{{- include "glm5.problem" (list "engine.extraEnv sets VLLM_API_KEY; expected the key under api.key.existingSecret." $cure) }}
{{- end }}
{{- if hasKey $seen .name }}
{{- include "glm5.problem" (list (printf "engine.extraEnv sets %s twice; expected each name once." .name) $cure) }}
{{- end }}
{{- $_ := set $seen .name true }}
{{- if and (hasKey . "value") (not (kindIs "string" .value)) }}
{{- $fixed := dict "name" .name "value" (toString .value) }}
{{- include "glm5.problem" (list (printf "engine.extraEnv sets %s to %s without quotes; expected text. Kubernetes accepts nothing else." .name (toJson .value)) (dict "engine" (dict "extraEnv" (list $fixed)))) }}
{{- end }}
{{- if and .value (regexMatch "(TOKEN|SECRET|PASSWORD|API_KEY|ACCESS_KEY)$" (upper .name)) }}
{{- include "glm5.problem" (list (printf "engine.extraEnv sets %s in clear text; expected valueFrom.secretKeyRef. Anyone who may read pods sees clear text." .name) $cure) }}
{{- end }}
{{- end }}
{{- end -}}

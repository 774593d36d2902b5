{{/* What ${name} in files/rules stands for: thresholds, and what follows from the release. Takes $. */}}
{{- define "glm5.ruleParameters" -}}
{{- $rule := .Values.prometheusRule -}}
{{- $parameters := dict
  "namespace" .Release.Namespace
  "release" .Release.Name
  "fullname" (include "glm5.fullname" .)
  "selector" (printf "namespace=%q,release=%q" .Release.Namespace .Release.Name)
  "runbooks" $rule.runbooks
  "startupSeconds" (include "glm5.startupSeconds" .)
  "sidecarDownFor" (include "glm5.sidecarDownFor" .)
  "restartsWithin" (include "glm5.restartsWithin" .)
  "stagingJobs" (printf "%s-[0-9a-f]{8}" (include "glm5.stagingJobPrefix" .))
  "errorBudget" (subf 1.0 $rule.slo.objective | printf "%.4f")
-}}
{{- range $name, $value := merge (dict) $rule.thresholds $rule.slo -}}
{{- $_ := set $parameters $name (toString $value) -}}
{{- end -}}
{{- toJson $parameters -}}
{{- end -}}

{{/* Where metrics only start after staging, as long as staging may take passes before silence is a failure. */}}
{{- define "glm5.sidecarDownFor" -}}
{{- if include "glm5.hasNativeSidecars" . -}}5m{{- else -}}{{ add 300 (mul 2 (include "glm5.stagingSeconds" . | int64)) }}s{{- end -}}
{{- end -}}

{{/* As long as three starts may take, so that three that use up their budget are counted together; short ones fall within two hours. */}}
{{- define "glm5.restartsWithin" -}}
{{ max 120 (div (mul 3 (include "glm5.startupSeconds" . | int64)) 60) }}m
{{- end -}}

{{/* A file of files/rules with its parameters filled in. Takes (list $ path). */}}
{{- define "glm5.rules" -}}
{{- $text := (index . 0).Files.Get (index . 1) -}}
{{- range $name, $value := include "glm5.ruleParameters" (index . 0) | fromJson -}}
{{- $text = replace (printf "${%s}" $name) $value $text -}}
{{- end -}}
{{- with regexFind "\\$\\{[A-Za-z]+\\}" $text -}}
{{- fail (printf "%s has %s; expected a name of glm5.ruleParameters or of prometheusRule.thresholds." (index $ 1) .) -}}
{{- end -}}
{{- $text -}}
{{- end -}}

{{/*
Rules that the schema cannot check. Each broken rule adds a sentence and the YAML that cures it. validate.yaml fails once, with all
of them.
*/}}
{{- define "glm5.checks" -}}
{{- $found := list -}}
{{- range list "images" "names" "numbers" "labels" "env" "settings" "secrets" "flags" "api" "model" "engine" "times" "access" "doors" "replicas" "nodes" "cluster" -}}
{{- $found = concat $found (include (printf "glm5.checks.%s" .) $ | fromYamlArray) -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* One item of a list of problems. Takes (list sentence map-to-paste). */}}
{{- define "glm5.problem" }}
- problem: {{ index . 0 | toJson }}
  paste: {{ toYaml (index . 1) | toJson }}
{{- end -}}

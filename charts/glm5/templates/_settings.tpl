{{/* The service's settings: those that are given, under their own or an old name, and those that the chart computes. */}}

{{/* A file of files/values as YAML. Takes (list $ name). */}}
{{- define "glm5.file" -}}{{ (index . 0).Files.Get (printf "files/values/%s" (index . 1)) }}{{- end -}}

{{/* What is at a dotted path of a map, put into `out` as "value"; nothing if it is not there. Takes (list map path out). */}}
{{- define "glm5.at" -}}
{{- $node := index . 0 -}}
{{- $out := index . 2 -}}
{{- $_ := unset $out "value" -}}
{{- $is := true -}}
{{- range splitList "." (index . 1) -}}
{{- if and $is (kindIs "map" $node) (hasKey $node .) -}}{{ $node = index $node . }}{{- else -}}{{ $is = false }}{{- end -}}
{{- end -}}
{{- if $is }}{{ $_ := set $out "value" $node }}{{ end -}}
{{- end -}}

{{/* Put a value at a dotted path of a map; without the value, remove it. Takes (list map path) or (list map path value). */}}
{{- define "glm5.put" -}}
{{- $node := index . 0 -}}
{{- $parts := splitList "." (index . 1) -}}
{{- range initial $parts -}}
{{- if not (kindIs "map" (index $node .)) }}{{ $_ := set $node . dict }}{{ end -}}
{{- $node = index $node . -}}
{{- end -}}
{{- if eq (len .) 3 }}{{ $_ := set $node (last $parts) (index . 2) }}{{ else }}{{ $_ := unset $node (last $parts) }}{{ end -}}
{{- end -}}

{{/* Old names that this release uses, each with the setting that replaces it. */}}
{{- define "glm5.oldNames" -}}
{{- $found := dict -}}
{{- $old := dict -}}
{{- range $name, $setting := include "glm5.file" (list . "renamed.yaml") | fromYaml -}}
{{- include "glm5.at" (list $.Values $name $old) -}}
{{- if hasKey $old "value" }}{{ $_ := set $found $name $setting }}{{ end -}}
{{- end -}}
{{- toYaml $found -}}
{{- end -}}

{{/* Settings that were given. Old names count unless the setting is given too; text that is meant as a number becomes one. */}}
{{- define "glm5.givenSettings" -}}
{{- $settings := deepCopy .Values.settings -}}
{{- $tables := include "glm5.file" (list . "tables.json") | fromJson -}}
{{- $old := dict -}}
{{- $new := dict -}}
{{- range $name, $setting := include "glm5.oldNames" . | fromYaml -}}
{{- include "glm5.at" (list $.Values $name $old) -}}
{{- include "glm5.at" (list $.Values.settings $setting $new) -}}
{{- if or (not (hasKey $new "value")) (eq (toJson $new.value) (toJson (index $tables.defaults $setting))) -}}
{{- if or (kindIs "invalid" $old.value) (eq (toString $old.value) "") -}}
{{- include "glm5.put" (list $settings $setting) -}}
{{- else -}}
{{- include "glm5.put" (list $settings $setting $old.value) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- range $path, $number := $tables.numbers -}}
{{- if hasPrefix "settings." $path -}}
{{- $setting := trimPrefix "settings." $path -}}
{{- include "glm5.at" (list $settings $setting $new) -}}
{{- if and (hasKey $new "value") (kindIs "string" $new.value) -}}
{{- include "glm5.put" (list $settings $setting (ternary (int64 $new.value) (float64 $new.value) (eq $number.kind "integer"))) -}}
{{- end -}}
{{- end -}}
{{- end -}}
{{- include "glm5.dropNull" $settings -}}
{{- toYaml $settings -}}
{{- end -}}

{{/* A setting as text: the one given, else the service's default. Takes (list $ path). */}}
{{- define "glm5.setting" -}}
{{- $tables := include "glm5.file" (list (index . 0) "tables.json") | fromJson -}}
{{- $at := dict -}}
{{- include "glm5.at" (list (include "glm5.givenSettings" (index . 0) | fromYaml) (index . 1) $at) -}}
{{- $value := ternary $at.value (index $tables.serviceDefaults (index . 1)) (hasKey $at "value") -}}
{{- if not (kindIs "invalid" $value) }}{{ toString $value }}{{ end -}}
{{- end -}}

{{/* Remove what is null, and maps with nothing else in them: the service then takes its own default. */}}
{{- define "glm5.dropNull" -}}
{{- range $key, $value := . -}}
{{- if kindIs "map" $value }}{{ include "glm5.dropNull" $value }}{{ end -}}
{{- if or (kindIs "invalid" $value) (and (kindIs "map" $value) (empty $value)) }}{{ $_ := unset $ $key }}{{ end -}}
{{- end -}}
{{- end -}}

{{/* The model's folder as the engine opens it. */}}
{{- define "glm5.modelPath" -}}
/models/{{ .Values.model.folder }}/current
{{- end -}}

{{- define "glm5.cacheDir" -}}
{{ ternary "/models/.glm5-cache" "/var/cache/glm5" .Values.cache.persistent }}
{{- end -}}

{{/* Arguments for vLLM as a JSON list: those for which the service has no setting, and those that are given. Takes (list $ given). */}}
{{- define "glm5.extraArgs" -}}
{{- $args := list -}}
{{- with (index . 0).Values.engine -}}
{{- if gt (int .decodeContextParallelSize) 1 -}}
{{- $args = concat $args (list "--decode-context-parallel-size" (toString .decodeContextParallelSize)) -}}
{{- end -}}
{{- if gt (int .mtpTokens) 0 -}}
{{- $args = concat $args (list "--speculative-config" (dict "method" "mtp" "num_speculative_tokens" (int .mtpTokens) | toJson)) -}}
{{- end -}}
{{- end -}}
{{- concat $args (dig "engine" "extra_args" list (index . 1)) | toJson -}}
{{- end -}}

{{/* The settings file of every container. */}}
{{- define "glm5.config" -}}
{{- $v := .Values -}}
{{- $given := include "glm5.givenSettings" . | fromYaml -}}
{{- $model := dict "path" (include "glm5.modelPath" .) -}}
{{- if dig "staging" "tokenizer_source" "" $given }}{{ $_ := set $model "hf_folder" (include "glm5.modelPath" .) }}{{ end -}}
{{- if $v.model.chatTemplate }}{{ $_ := set $model "chat_template" "/etc/glm5/chat_template.jinja" }}{{ end -}}
{{- $engine := dict
  "profile" $v.profile
  "served_model_name" $v.model.name
  "tensor_parallel_size" (int $v.engine.tensorParallelSize)
  "stop_timeout_seconds" (include "glm5.engineStopSeconds" . | int)
-}}
{{- with include "glm5.extraArgs" (list . $given) | fromJsonArray }}{{ $_ := set $engine "extra_args" . }}{{ end -}}
{{- $config := dict
  "run_dir" "/run/glm5"
  "cache_dir" (include "glm5.cacheDir" .)
  "model" $model
  "engine" $engine
  "drain" (dict
    "endpoint_grace_seconds" (include "glm5.endpointGraceSeconds" . | int)
    "limit_seconds" (int64 $v.drainSeconds))
-}}
{{- if $v.staging.enabled }}{{ $_ := set $config "staging" (include "glm5.stagingConfig" . | fromYaml) }}{{ end -}}
{{- toYaml (mergeOverwrite $given $config) -}}
{{- end -}}

{{/* Where staging takes the model from and puts it, and what it shows to the source. */}}
{{- define "glm5.stagingConfig" -}}
{{- $token := dict "file" "/etc/glm5-source/token" -}}
{{- $staging := dict "source" .Values.model.source "target" (printf "/models/%s" .Values.model.folder) -}}
{{- if .Values.staging.caConfigMap }}{{ include "glm5.put" (list $staging "http.ca_file" "/etc/glm5-ca/ca.crt") }}{{ end -}}
{{- if include "glm5.sourceSecret" . -}}
{{- if hasPrefix "hf://" .Values.model.source }}{{ include "glm5.put" (list $staging "hub.token" $token) }}{{ end -}}
{{- if hasPrefix "http" .Values.model.source }}{{ include "glm5.put" (list $staging "http.token" $token) }}{{ end -}}
{{- if hasPrefix "oci://" .Values.model.source }}{{ include "glm5.put" (list $staging "oci.auth_file" "/etc/glm5-source/.dockerconfigjson") }}{{ end -}}
{{- end -}}
{{- toYaml $staging -}}
{{- end -}}

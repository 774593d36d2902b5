{{/* Settings of the service that the chart computes itself. */}}
{{- define "glm5.checks.settings" -}}
{{- $secrets := (include "glm5.file" (list . "tables.json") | fromJson).secrets -}}
{{- $at := dict -}}
{{- range $setting, $by := include "glm5.file" (list . "owned-settings.yaml") | fromYaml -}}
{{- include "glm5.at" (list $.Values.settings $setting $at) -}}
{{- if and (hasKey $at "value") (not (kindIs "invalid" $at.value)) }}
{{- $is := ternary "given" (printf "%s" (toJson $at.value)) (has $setting $secrets) }}
{{- $use := ternary "" (printf " Set %s instead." $by.value) (empty $by.value) }}
{{- $why := ternary "" (printf ", because %s" $by.because) (empty $by.because) }}
{{- $cure := dict }}
{{- include "glm5.put" (list $cure (printf "settings.%s" $setting) nil) }}
{{- include "glm5.problem" (list (printf "settings.%s is %s; expected to be left out. The chart sets it itself%s.%s" $setting $is $why $use) $cure) }}
{{- end }}
{{- end }}
{{- if kindIs "string" (dig "engine" "extra_args" list .Values.settings) }}
{{- include "glm5.problem" (list "settings.engine.extra_args is text; expected a list with one item for each argument." (dict "settings" (dict "engine" (dict "extra_args" list)))) }}
{{- end }}
{{- end -}}

{{/* Refuses secrets that would go into a ConfigMap. The sentences never repeat them. */}}
{{- define "glm5.checks.secrets" -}}
{{- $texts := dict "model.source" .Values.model.source "settings" (include "glm5.givenSettings" . | fromYaml | toJson) -}}
{{- $user := "(?i)https?://[^/@\\s\"]+@|[a-z0-9]+://[^/@\\s\":]*:[^/@\\s\"]+@" -}}
{{- $signed := "(?i)[?&](x-amz-[a-z-]*(signature|token)|signature|sig|token|access_token|api_?key|password|secret)=" -}}
{{- $inProxy := regexMatch $user (dig "staging" "http" "proxy" "" (include "glm5.givenSettings" . | fromYaml)) -}}
{{- if $inProxy }}
{{- include "glm5.problem" (list "settings.staging.http.proxy holds a user or password, and settings go into a ConfigMap; expected none. Put the whole address into a Secret under the key proxy, and name the Secret in staging.proxySecret." (dict "settings" (dict "staging" (dict "http" (dict "proxy" nil))) "staging" (dict "proxySecret" "model-proxy"))) }}
{{- end }}
{{- range $path, $text := $texts }}
{{- if and (or (regexMatch $user ($text | replace "\\u0026" "&")) (regexMatch $signed ($text | replace "\\u0026" "&"))) (not (and $inProxy (eq $path "settings"))) }}
{{- include "glm5.problem" (list (printf "%s holds an address with credentials, and it goes into a ConfigMap; expected the address without them. Put the credentials into a Secret and name it in staging.credentials.existingSecret." $path) (dict "staging" (dict "credentials" (dict "existingSecret" "model-source")))) }}
{{- end }}
{{- end }}
{{- end -}}

{{/*
Arguments for vLLM that a setting or a value is for, in each spelling that the service's own parser knows: an alias, _ for -, one key
of a JSON value, `--no-` of a switch, and flag and value in one item.
*/}}
{{- define "glm5.checks.flags" -}}
{{- $tables := include "glm5.file" (list . "tables.json") | fromJson -}}
{{- $settings := include "glm5.file" (list . "owned-settings.yaml") | fromYaml -}}
{{- $own := include "glm5.file" (list . "owned-flags.yaml") | fromYaml -}}
{{- range $flag, $setting := $tables.flags -}}
{{- $_ := set $own $flag (dig $setting "value" (printf "settings.%s" $setting) $settings) -}}
{{- end -}}
{{- $args := dig "engine" "extra_args" list (include "glm5.givenSettings" . | fromYaml) -}}
{{- $cure := dict "settings" (dict "engine" (dict "extra_args" list)) -}}
{{- range ternary (list $args) $args (kindIs "string" $args) }}
{{- if hasPrefix "-" . }}
{{- $flag := regexFind "^[^=.\\s]+" . | replace "_" "-" }}
{{- $flag = index $tables.aliases $flag | default $flag }}
{{- if and (not (hasKey $own $flag)) (hasKey $own (replace "--no-" "--" $flag)) }}{{ $flag = replace "--no-" "--" $flag }}{{ end }}
{{- if hasKey $own $flag }}
{{- $use := index $own $flag | default "that the chart sets itself" }}
{{- include "glm5.problem" (list (printf "settings.engine.extra_args has %s; expected the value %s. Other parts of the release depend on it." $flag $use) $cure) }}
{{- else if regexMatch "^[^=\\s]+\\s" . }}
{{- include "glm5.problem" (list (printf "settings.engine.extra_args has %s and its value in one item; expected two items, or %s=VALUE." $flag $flag) $cure) }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
